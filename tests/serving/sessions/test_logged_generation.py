"""Events of a log as its readers take them."""

from serving.engine.request import FinishReason, TokenEvent
from serving.sessions.logged_generation import LoggedEvent


def test_token_by_token_what_is_said_once_comes_first_the_end_last_and_each_right_guess_where_it_stands() -> None:
    event = TokenEvent(
        request_id="r",
        token_ids=(5, 6, 7, 8),
        cached_tokens=2,
        guessed_tokens=3,
        accepted_tokens=2,
        finish_reason=FinishReason.LENGTH,
    )
    parts = [*LoggedEvent(0, 0, event).by_token()]
    assert [part.token_ids for part in parts] == [(5,), (6,), (7,), (8,)]
    assert [part.cached_tokens for part in parts] == [2, None, None, None]
    assert [part.guessed_tokens for part in parts] == [3, 0, 0, 0]
    assert [part.accepted_tokens for part in parts] == [1, 1, 0, 0]
    assert [part.finish_reason for part in parts] == [None, None, None, FinishReason.LENGTH]


def test_an_event_of_one_token_stays_as_it_is() -> None:
    event = TokenEvent(request_id="r", token_ids=(5,), guessed_tokens=3)
    assert [*LoggedEvent(0, 0, event).by_token()] == [event]
