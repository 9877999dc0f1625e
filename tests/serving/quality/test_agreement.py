import math

import numpy as np
import pytest

from serving.engine.request import MAX_LOGPROBS, TokenLogprobs
from serving.quality.agreement import agreement, divergence
from serving.quality.scored_text import ScoredText


def scored(logits: np.ndarray, token: int, k: int = MAX_LOGPROBS) -> TokenLogprobs:
    logprobs = logits - np.log(np.exp(logits).sum())
    top = np.argsort(-logprobs)[:k]
    rank = int((logprobs > logprobs[token]).sum()) + 1
    ids, values = tuple(top.tolist()), tuple(logprobs[top].tolist())
    return TokenLogprobs(
        token_id=token, logprob=float(logprobs[token]), rank=rank, top_token_ids=ids, top_logprobs=values
    )


def kl(one: np.ndarray, two: np.ndarray) -> float:
    p, q = (np.exp(x - np.log(np.exp(x).sum())) for x in (one, two))
    return float((p * np.log(p / q)).sum())


def test_divergence_is_exact_where_all_tokens_are_reported() -> None:
    one, two = np.random.default_rng(0).normal(size=(2, MAX_LOGPROBS))
    assert divergence(scored(one, 3), scored(two, 3)) == pytest.approx(kl(one, two), abs=1e-9)
    assert divergence(scored(one, 3), scored(one, 3)) == pytest.approx(0, abs=1e-12)


def test_divergence_is_at_most_the_whole_where_the_tail_is_merged() -> None:
    for seed in range(20):
        one = 2 * np.random.default_rng(seed).normal(size=100)
        two = one + 0.3 * np.random.default_rng(100 + seed).normal(size=100)
        found = divergence(scored(one, 50), scored(two, 50))
        assert 0 < found <= kl(one, two) + 1e-9


def test_agreement_counts_the_tokens_that_both_put_first() -> None:
    one, two = np.zeros(30), np.zeros(30)
    one[4], two[4], two[9] = 2, 2, 3
    right = ScoredText([[scored(one, 4), scored(one, 7)], [scored(one, 1), scored(one, 4)]])
    other = ScoredText([[scored(one, 4), scored(two, 7)], [scored(one, 1), scored(one, 4)]])
    found = agreement(right, other)
    assert found.same_top_token == 0.75
    assert found.worst_kl == pytest.approx(4 * found.mean_kl)
    assert found.perplexity_ratio == pytest.approx(other.perplexity / right.perplexity)


def test_perplexity_of_a_uniform_guess_is_the_number_of_tokens() -> None:
    text = ScoredText([[scored(np.zeros(37), token) for token in range(5)]])
    assert text.perplexity == pytest.approx(37)
    assert math.isfinite(text.perplexity)
