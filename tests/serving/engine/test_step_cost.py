"""What is known of a step's seconds, and for how long."""

import pytest

from serving.engine.step_cost import STALE_AFTER, StepCost, buckets_up_to


def test_a_step_is_measured_under_the_bucket_that_it_is_padded_to() -> None:
    cost = StepCost((8, 32))
    cost.observe(9, 0.5)
    assert cost.seconds(8) is None
    assert cost.seconds(32) == 0.5
    assert cost.buckets_from(9) == (32,)
    assert cost.buckets_from(8) == (8, 32)


def test_one_accident_among_the_last_few_steps_does_not_count() -> None:
    cost = StepCost((8,))
    for seconds in (0.1, 60.0, 0.2, 0.1):
        cost.observe(8, seconds)
    assert cost.seconds(8) == 0.2


def test_what_was_measured_long_ago_is_not_known() -> None:
    cost = StepCost((8, 32))
    cost.observe(32, 0.5)
    for _ in range(STALE_AFTER):
        cost.observe(8, 0.1)
    assert cost.seconds(32) == 0.5
    cost.observe(8, 0.1)
    assert cost.seconds(32) is None


def test_the_least_seconds_are_those_of_the_best_rate_seen() -> None:
    cost = StepCost((8, 32))
    assert cost.least_seconds(64) == cost.least_step_seconds() == 0.0
    cost.observe(8, 0.4)
    cost.observe(32, 0.8)
    cost.observe(32, 1.6)
    assert cost.least_seconds(64) == pytest.approx(1.6)
    assert cost.least_step_seconds() == 0.4


@pytest.mark.parametrize(("limit", "buckets"), [(1, (1,)), (8, (1, 2, 4, 8)), (20, (1, 2, 4, 8, 16, 20))])
def test_unknown_buckets_are_taken_for_powers_of_two(limit: int, buckets: tuple[int, ...]) -> None:
    assert buckets_up_to(limit) == buckets
