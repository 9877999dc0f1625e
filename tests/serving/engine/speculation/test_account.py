"""What guessing has gained and lost, by the time from one plan to the next."""

import pytest

from serving.engine.policies.loss_budget import ALLOWANCE
from serving.engine.speculation.account import Account


def account() -> Account:
    """A token of each stream takes a second without guesses."""
    return Account(lambda streams: 1.0)


def test_plans_without_guesses_earn_the_allowance_however_long_they_take() -> None:
    made = account()
    for at in (0.0, 3.0, 4.0):
        made.issue(at, 2, rounds=1, guesses=False, read=0)
    assert made.balance == pytest.approx(2 * ALLOWANCE)


def test_a_plan_with_guesses_is_set_against_its_tokens() -> None:
    made = account()
    made.issue(0.0, 2, rounds=1, guesses=True, read=0)
    made.accept(4)  # three tokens of each stream
    made.issue(2.5, 2, rounds=1, guesses=False, read=0)
    assert made.balance == pytest.approx(0.5 + 3 * ALLOWANCE)


def test_what_does_not_overlap_because_of_guesses_counts_as_theirs() -> None:
    made = account()
    made.issue(0.0, 1, rounds=1, guesses=False, read=0)
    made.put_off()
    made.issue(2.0, 1, rounds=1, guesses=False, read=0)  # it waited, and found nothing to guess
    assert made.balance == pytest.approx(ALLOWANCE - 1.0)
    made.issue(2.1, 1, rounds=1, guesses=False, read=0)  # made while the one before it runs
    assert made.balance == pytest.approx(2 * ALLOWANCE - 0.1)


def test_reading_of_texts_is_measured_and_paid_for() -> None:
    made = account()
    assert made.seconds_to_read(0.5) == 0.5
    made.issue(0.0, 1, rounds=1, guesses=True, read=10)
    made.issue(3.0, 1, rounds=1, guesses=False, read=0)
    assert made.seconds_to_read(0.5) == pytest.approx(0.2)
    assert made.balance == pytest.approx(ALLOWANCE - 2.0)


def test_what_other_plans_take_is_nobodys() -> None:
    made = account()
    made.issue(0.0, 1, rounds=1, guesses=True, read=0)
    made.interrupt()
    made.issue(9.0, 1, rounds=1, guesses=False, read=0)
    assert made.balance == 0.0
