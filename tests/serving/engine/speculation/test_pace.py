"""What steps take with guesses and without."""

import pytest

from serving.engine.speculation.pace import STALE_AFTER, Pace


def test_plain_steps_are_measured_once_they_overlap() -> None:
    pace = Pace((1, 8))
    for number in range(5):
        assert pace.plain_seconds(1) is None or number >= 4
        pace.issue(0.5 * number, 1)
    assert pace.plain_seconds(1) == pytest.approx(0.5)
    assert pace.plain_seconds(2) is None


def test_a_plan_that_waited_in_vain_is_not_taken_for_one_that_overlaps() -> None:
    pace = Pace((1,))
    for number in range(6):
        pace.issue(2.0 * number, 1, waited=True)
    assert pace.plain_seconds(1) is None


def test_a_burst_counts_by_the_token() -> None:
    pace = Pace((1, 8))
    for number in range(6):
        pace.issue(2.0 * number, 1, rounds=4)
    assert pace.plain_seconds(1) == pytest.approx(0.5)


def test_steps_with_guesses_are_measured_by_size_and_by_what_the_device_makes() -> None:
    pace = Pace((1, 8, 16))
    for number in range(3):
        pace.issue(0.1 * number, 5, made=2)
    assert pace.guessed_seconds(5, 2) == pytest.approx(0.1)
    assert pace.guessed_seconds(8, 3) == pytest.approx(0.1), "no less than one with fewer guesses"
    assert pace.guessed_seconds(12, 2) == pytest.approx(0.1), "no less than a smaller one"
    assert pace.guessed_seconds(5, 1) is None


def test_what_comes_between_is_not_measured() -> None:
    pace = Pace((1, 8))
    for number in range(8):
        pace.issue(1.0 * number, 4, made=0)
        pace.interrupt()
    assert pace.guessed_seconds(4, 0) is None


def test_old_measurements_are_not_trusted() -> None:
    pace = Pace((1, 8))
    for number in range(3):
        pace.issue(1.0 * number, 4, made=0)
    assert pace.guessed_seconds(4, 0) == pytest.approx(1.0)
    for number in range(STALE_AFTER + 2):
        pace.issue(3.0 + number, 1)
    assert pace.guessed_seconds(4, 0) is None
