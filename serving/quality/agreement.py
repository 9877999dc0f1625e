"""How near one model's next-token distributions are to another's, on the same text."""

import math
from dataclasses import dataclass

from serving.engine.request import TokenLogprobs
from serving.quality.scored_text import ScoredText

LEAST_REST = 1e-6  # of a probability: below it the sum's rounding is all that is left


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    same_top_token: float  # share of positions where both put the same token first
    mean_kl: float  # nats, as `divergence`
    worst_kl: float
    perplexity_ratio: float  # of the other to the right one


def agreement(right: ScoredText, other: ScoredText) -> Agreement:
    """Both are scores of the same tokens."""
    pairs = list(zip(right.scores, other.scores, strict=True))
    divergences = [divergence(one, two) for one, two in pairs]
    return Agreement(
        same_top_token=sum(one.top_token_ids[0] == two.top_token_ids[0] for one, two in pairs) / len(pairs),
        mean_kl=sum(divergences) / len(pairs),
        worst_kl=max(divergences),
        perplexity_ratio=other.perplexity / right.perplexity,
    )


def divergence(right: TokenLogprobs, other: TokenLogprobs) -> float:
    """KL(right || other) in nats over the tokens whose probability both report, and all others taken as one: what
    that merging hides makes it a lower bound of the whole (the log sum inequality)."""
    one, two = (_reported(scores) for scores in (right, other))
    shared = one.keys() & two.keys()
    total = sum(math.exp(one[token]) * (one[token] - two[token]) for token in shared)
    rest, other_rest = (1 - sum(math.exp(table[token]) for token in shared) for table in (one, two))
    if rest > LEAST_REST and other_rest > LEAST_REST:
        total += rest * math.log(rest / other_rest)
    return max(0.0, total)


def _reported(scores: TokenLogprobs) -> dict[int, float]:
    return {**dict(zip(scores.top_token_ids, scores.top_logprobs, strict=True)), scores.token_id: scores.logprob}
