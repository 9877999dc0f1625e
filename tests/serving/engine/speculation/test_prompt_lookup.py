"""Guesses from the text itself."""

import random

from serving.engine.speculation.prompt_lookup import PromptLookup


def test_what_followed_last_time_is_guessed() -> None:
    assert PromptLookup(2, 3).guess([1, 2, 3, 4, 5, 9, 1, 2, 3], 2) == (4, 5)


def test_the_latest_occurrence_counts() -> None:
    assert PromptLookup(2, 2).guess([1, 2, 7, 1, 2, 8, 1, 2], 1) == (8,)


def test_longer_runs_come_before_shorter_ones() -> None:
    tokens = [5, 1, 2, 7, 6, 1, 2, 8, 5, 1, 2]
    assert PromptLookup(2, 2).guess(tokens, 1) == (8,)
    assert PromptLookup(2, 3).guess(tokens, 1) == (7,)


def test_text_that_repeats_itself_goes_round() -> None:
    assert PromptLookup(2, 3).guess([1, 2, 3, 1, 2, 3, 1, 2, 3], 5) == (1, 2, 3, 1, 2)
    assert PromptLookup(1, 1).guess([4, 4], 3) == (4, 4, 4)


def test_new_text_is_not_guessed_at() -> None:
    assert PromptLookup(2, 3).guess([1, 2, 3, 4], 4) == ()
    assert PromptLookup(1, 3).guess([1], 4) == ()
    assert PromptLookup(1, 3).guess([], 4) == ()


def test_a_text_that_grows_is_looked_up_as_one_that_is_there_at_once() -> None:
    rng = random.Random(0)
    tokens: list[int] = []
    growing = PromptLookup(1, 3)
    for _ in range(300):
        tokens += [rng.randrange(6) for _ in range(rng.randint(1, 3))]
        assert growing.guess(tokens, 4) == PromptLookup(1, 3).guess(tokens, 4)
