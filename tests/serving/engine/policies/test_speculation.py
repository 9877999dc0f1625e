"""How many tokens are guessed at."""

import pytest

from serving.engine.policies.speculation import choose_depths, expected_tokens, useful_depth


def test_a_guess_needs_a_hope_of_being_looked_at() -> None:
    assert useful_depth(1.0, 4) == 4
    assert useful_depth(0.9, 15) == 15
    assert useful_depth(0.5, 15) == 2  # 0.5, 0.25, and 0.125 is too little
    assert useful_depth(0.1, 4) == 0
    assert useful_depth(0.9, 0) == 0


def test_expected_tokens_count_the_one_that_is_drawn_in_any_case() -> None:
    assert expected_tokens(0.0, 4) == 1
    assert expected_tokens(1.0, 4) == 5
    assert expected_tokens(0.5, 2) == pytest.approx(1.75)


def test_where_tokens_cost_nothing_every_hopeful_guess_is_made() -> None:
    depths = choose_depths([0.9, 0.5, 0.1], [4, 4, 4], most_tokens=99, plain_seconds=1.0, seconds=lambda n, d: 1.0)
    assert depths == [4, 2, 0]


def test_where_a_step_takes_as_long_as_its_tokens_no_guess_is_made() -> None:
    depths = choose_depths([0.9] * 8, [4] * 8, most_tokens=99, plain_seconds=8.0, seconds=lambda n, d: float(n))
    assert depths == [0] * 8


def test_a_depth_that_pays_best_is_taken() -> None:
    costs = {1: 1.1, 2: 1.2, 3: 2.6, 4: 3.0}
    depths = choose_depths([0.8], [4], most_tokens=99, plain_seconds=1.0, seconds=lambda n, d: costs[d])
    assert depths == [2]


def test_a_step_holds_no_more_tokens_than_it_may() -> None:
    rates, most = [1.0] * 4, [4] * 4
    assert choose_depths(rates, most, most_tokens=9, plain_seconds=1.0, seconds=lambda n, d: 1.0) == [1] * 4
    assert choose_depths(rates, most, most_tokens=7, plain_seconds=1.0, seconds=lambda n, d: 1.0) == [0] * 4


def test_little_gain_is_not_worth_the_trouble() -> None:
    depths = choose_depths([0.25], [1], most_tokens=99, plain_seconds=1.0, seconds=lambda n, d: 1.22)
    assert depths == [0]


def test_what_is_not_known_is_tried_where_it_is_cheapest() -> None:
    def unknown(tokens: int, depth: int) -> float | None:
        return None

    assert choose_depths([0.9], [4], most_tokens=99, plain_seconds=1.0, seconds=unknown) == [1]
    assert choose_depths(
        [0.9], [4], most_tokens=99, plain_seconds=1.0, seconds=lambda n, d: 1.1 if d < 3 else None
    ) == [3]
