"""How many tokens to guess at: as many as pay, by how often guesses were right and what steps have been seen to take.

Guesses are looked at one after another, up to the first wrong one. With a share `rate` of them right, d guesses give
1 + rate + ... + rate^d tokens on average (Leviathan et al., arXiv:2211.17192), in one step that takes longer the more
tokens it has. Under load a step has enough to compute without guesses, and they pay no more.
"""

import math
from collections.abc import Callable, Sequence

from serving.engine.policies.loss_budget import covers

LEAST_HOPE = 0.2  # of being right, all those before it included, for which a guess is worth its place in a step
MARGIN = 1.03  # what guessing must promise over plain decoding: it has costs that are not in a step's time


def useful_depth(rate: float, most: int) -> int:
    """How many guesses of one request, at most `most`, have a hope of being looked at."""
    hope, depth = rate, 0
    while depth < most and hope >= LEAST_HOPE:
        depth += 1
        hope *= rate
    return depth


def expected_tokens(rate: float, depth: int) -> float:
    """What `depth` guesses of one request give in a step."""
    return sum(rate**i for i in range(depth + 1))


def choose_depths(
    rates: Sequence[float],
    available: Sequence[int],
    *,
    most_tokens: int,
    plain_seconds: float,
    seconds: Callable[[int, int], float | None],
    balance: float = math.inf,
) -> list[int]:
    """How many guesses each of the decoding sequences gets, at most `available`; all 0 where none pay.

    `plain_seconds` is what a token of each sequence takes without guesses, `seconds(n, d)` what a step of n tokens
    takes in which a sequence has up to d guesses; `most_tokens` bounds n. Where that is not known (None), the
    shallowest such step may be tried, and no deeper one before it. Nothing is tried that could lose more than
    `balance` (see `loss_budget.py`).
    """
    useful = [useful_depth(rate, count) for rate, count in zip(rates, available, strict=True)]
    best, best_speed = [0] * len(rates), MARGIN * len(rates) / plain_seconds
    for cap in range(1, max(useful, default=0) + 1):
        depths = [min(cap, count) for count in useful]
        tokens = len(rates) + sum(depths)
        if tokens > most_tokens:
            break
        gain = sum(expected_tokens(rate, depth) for rate, depth in zip(rates, depths, strict=True))
        took = seconds(tokens, cap)
        expected = plain_seconds if took is None else took
        if gain > best_speed * expected and covers(balance, took=took, step=plain_seconds):
            best, best_speed = depths, gain / expected
        if took is None:
            break
    return best
