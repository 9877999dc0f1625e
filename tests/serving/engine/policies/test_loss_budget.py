"""Guessing never costs more than its allowance, whatever guesses turn out to be worth."""

import random
from collections.abc import Callable

import pytest

from serving.engine.policies.loss_budget import ALLOWANCE, MOST_STEPS, UNKNOWN, affordable_texts, covers, settled
from serving.engine.policies.speculation import choose_depths

PLAIN = 1.0  # seconds of a step without guesses


def test_every_plan_adds_an_allowance_and_a_risky_one_what_it_gained() -> None:
    assert settled(0.0, took=9.0, worth=1.0, risked=False, step=PLAIN) == pytest.approx(ALLOWANCE)
    assert settled(0.0, took=1.5, worth=1.0, risked=True, step=PLAIN) == pytest.approx(ALLOWANCE - 0.5)
    assert settled(0.0, took=1.5, worth=3.0, risked=True, step=PLAIN) == pytest.approx(3 * ALLOWANCE + 1.5)


def test_old_gains_do_not_pay_for_long_losses() -> None:
    assert settled(MOST_STEPS * PLAIN, took=1.0, worth=5.0, risked=True, step=PLAIN) == MOST_STEPS * PLAIN


def test_a_risk_is_run_where_the_balance_covers_it() -> None:
    assert covers(0.5, took=1.5, step=PLAIN)
    assert not covers(0.4, took=1.5, step=PLAIN)
    assert covers(UNKNOWN - 1, took=None, step=PLAIN)
    assert not covers(UNKNOWN - 1.1, took=None, step=PLAIN)


def test_the_shortest_texts_are_read_first() -> None:
    assert affordable_texts(1.0, [80, 10, 70], 0.01) == [False, True, True]
    assert affordable_texts(-1.0, [80, 0, 70], 0.01) == [False, True, False]
    assert affordable_texts(0.0, [0, 3], 0.01) == [True, False]


def test_without_a_balance_nothing_is_tried() -> None:
    chosen = {"most_tokens": 99, "plain_seconds": PLAIN, "seconds": lambda tokens, depth: None}
    assert choose_depths([0.9], [4], **chosen, balance=0.0) == [0]
    assert choose_depths([0.9], [4], **chosen, balance=UNKNOWN - 1) == [1]


@pytest.mark.parametrize("users", [1, 8, 32])
@pytest.mark.parametrize("right", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("cost", [lambda n: 1.0, lambda n: n, lambda n: 0.2 + 0.1 * n], ids=["flat", "steep", "mixed"])
def test_decoding_takes_no_longer_than_the_allowance_and_one_risk(
    cost: Callable[[int], float], right: float, users: int
) -> None:
    """Steps of the policy alone: rates are believed to be 0.7 throughout, so that it always hopes."""
    rng, plain = random.Random(users), cost(users)
    seen: dict[int, float] = {}
    balance = spent = worth = worst = 0.0
    for _ in range(3000):
        depths = choose_depths(
            [0.7] * users,
            [4] * users,
            most_tokens=64,
            plain_seconds=plain,
            seconds=lambda tokens, depth: seen.get(tokens),
            balance=balance,
        )
        tokens = users + sum(depths)
        took = cost(tokens) if any(depths) else plain
        if any(depths):
            seen[tokens] = took
        delivered = sum(1 + next((i for i in range(d) if rng.random() >= right), d) for d in depths)
        given = plain * delivered / users
        worst = max(worst, took - plain)
        balance = settled(balance, took=took, worth=given, risked=any(depths), step=plain)
        spent, worth = spent + took, worth + given
    assert worth / spent > 1 / (1 + ALLOWANCE + worst / worth)
    assert worth / spent > 0.97 or worst > 0.01 * worth
