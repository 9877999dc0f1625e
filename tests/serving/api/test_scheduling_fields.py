"""Class and deadline, from a body to the engine and back."""

import pytest

from serving.engine.request import FinishReason, Priority
from tests.fakes.engine import Script
from tests.serving.api.conftest import ApiMaker, Body, chat_body, text_body

PATHS = [("/v1/chat/completions", chat_body()), ("/v1/completions", text_body())]


@pytest.mark.parametrize(("path", "body"), PATHS)
async def test_class_and_deadline_reach_the_engine(make_api: ApiMaker, path: str, body: Body) -> None:
    api = make_api(make_api.says("x"))
    assert (await api.post(path, {**body, "priority": "batch", "timeout_seconds": 2.5})).status_code == 200
    assert (await api.post(path, body)).status_code == 200
    asked, unasked = api.engine.requests
    assert (asked.priority, asked.deadline_seconds) == (Priority.BATCH, 2.5)
    assert (unasked.priority, unasked.deadline_seconds) == (Priority.STANDARD, None)


@pytest.mark.parametrize(("path", "body"), PATHS)
async def test_the_error_names_the_classes(make_api: ApiMaker, path: str, body: Body) -> None:
    error = (await make_api().post(path, {**body, "priority": 3})).json()["error"]
    assert error["message"] == 'priority must be "interactive" or "standard" or "batch", not 3'


@pytest.mark.parametrize(("path", "body"), PATHS)
async def test_a_reply_says_that_its_time_was_up(make_api: ApiMaker, path: str, body: Body) -> None:
    api = make_api(Script(token_ids=make_api.ids("so far"), finish=FinishReason.DEADLINE))
    choice = (await api.post(path, {**body, "timeout_seconds": 1})).json()["choices"][0]
    assert choice["finish_reason"] == "timeout"
    assert choice.get("text", choice.get("message", {}).get("content")) == "so far"
    assert (await api.events(path, body))[-1]["choices"][0]["finish_reason"] == "timeout"


async def test_a_prompt_that_was_not_read_in_time_has_no_logprobs(make_api: ApiMaker) -> None:
    api = make_api(Script(token_ids=(), finish=FinishReason.DEADLINE))
    body = text_body(prompt_logprobs=1, echo=True, logprobs=1)
    choice = (await api.post("/v1/completions", body)).json()["choices"][0]
    assert choice["finish_reason"] == "timeout"
    assert choice["prompt_logprobs"] == []
