"""How often a request's guesses are right."""

from serving.engine.speculation.guessing import Guessing


def test_the_rate_follows_what_was_looked_at() -> None:
    right, wrong, half = Guessing(None), Guessing(None), Guessing(None)
    for number in range(40):
        right.observe(4, 4)
        wrong.observe(4, 0)
        half.observe(1, number % 2)
    assert right.rate > 0.95
    assert wrong.rate < 0.15
    assert 0.4 < half.rate < 0.65


def test_guesses_behind_the_first_wrong_one_do_not_count() -> None:
    guessing = Guessing(None)
    for _ in range(60):
        guessing.observe(4, 1)
    assert 0.45 < guessing.rate < 0.55


def test_a_request_that_is_passed_over_is_tried_again() -> None:
    guessing = Guessing(None)
    for _ in range(40):
        guessing.observe(4, 0)
    before = guessing.rate
    for _ in range(200):
        guessing.pass_over()
    assert before < 0.15
    assert guessing.rate > 0.4
