"""How much a model is to reason, in the words of each protocol: the prompt is the same one."""

from collections.abc import Iterator
from typing import Any

import pytest

from serving.client import schema
from serving.generation.chat_format import ChatFormat
from serving.generation.tokenizer import Tokenizer
from tests.serving.api.conftest import MODEL, TEMPLATE, ApiMaker
from tests.serving.api.grpc.serving_grpc import channel_to, chat, unary
from tests.serving.api.responses.asking import prompt

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
HI = [{"role": "user", "content": "hi"}]
LEVELS = "{# <think> #}[{{ enable_thinking | default('-') }}/{{ reasoning_effort | default('-') }}]"


@pytest.fixture(scope="module")
def levels(tokenizer: Tokenizer) -> Iterator[ApiMaker]:
    chat_format = ChatFormat({"default": LEVELS + TEMPLATE}, {}, source="levels")
    yield ApiMaker(tokenizer, chat_format)
    chat_format.close()


def said_by(path: str, **fields: Any) -> dict[str, Any]:
    words = {"input": "hi"} if path == RESPONSES else {"messages": HI}
    return {"model": MODEL, **words, **({"max_tokens": 2000} if path == MESSAGES else {}), **fields}


def thinking(tokens: int) -> dict[str, Any]:
    return {"thinking": {"type": "enabled", "budget_tokens": tokens}, "max_tokens": tokens + 100}


@pytest.mark.parametrize(
    ("path", "fields", "begins"),
    [
        (CHAT, {"reasoning_effort": "low"}, "[True/low]"),
        (CHAT, {"reasoning_effort": "none"}, "[False/-]"),
        (CHAT, {"reasoning_effort": None}, "[-/-]"),
        (RESPONSES, {"reasoning": {"effort": "high", "summary": "auto"}}, "[True/high]"),
        (RESPONSES, {"reasoning": {"effort": "minimal"}}, "[False/-]"),
        (RESPONSES, {"reasoning": {}}, "[-/-]"),
        (MESSAGES, {"thinking": {"type": "disabled"}}, "[False/-]"),
        (MESSAGES, thinking(1024), "[True/low]"),
        (MESSAGES, {}, "[-/-]"),
    ],
)
async def test_the_template_is_told(levels: ApiMaker, path: str, fields: dict[str, Any], begins: str) -> None:
    api = levels(levels.says("ok"))
    reply = await api.post(path, said_by(path, **fields))
    assert reply.status_code == 200, reply.text
    assert prompt(api).startswith(begins)
    if path == RESPONSES:
        assert reply.json()["reasoning"]["effort"] == fields["reasoning"].get("effort")


async def test_a_budget_of_tokens_is_a_measure_of_the_effort(levels: ApiMaker) -> None:
    api = levels()
    for tokens, effort in ((4095, "low"), (4096, "medium"), (16383, "medium"), (16384, "high")):
        counted = await api.post(f"{MESSAGES}/count_tokens", said_by("", thinking=thinking(tokens)["thinking"]))
        like = await api.post("/tokenize", said_by("", reasoning_effort=effort))
        assert counted.json()["input_tokens"] == like.json()["count"]


async def test_a_grpc_call_has_the_same_field(levels: ApiMaker) -> None:
    api = levels(levels.says("ok"))
    async with channel_to(api) as channel:
        call = unary(channel, "Generate", schema.GenerateReply)
        await call(chat(reasoning_effort="medium"))
    assert prompt(api).startswith("[True/medium]")


async def test_tokens_are_counted_of_what_will_be_computed(levels: ApiMaker) -> None:
    api = levels(levels.says("ok"))
    await api.post(CHAT, said_by(CHAT, reasoning_effort="low"))
    counted = await api.post("/tokenize", said_by(CHAT, reasoning_effort="low"))
    assert counted.json()["tokens"] == list(api.engine.requests[-1].prompt_token_ids)


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (CHAT, {"reasoning_effort": "most"}, "reasoning_effort"),
        (CHAT, {"reasoning_effort": "low"}, "reasoning_effort"),
        (RESPONSES, {"reasoning": {"effort": "low"}}, "reasoning.effort"),
        (MESSAGES, {"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking"),
        ("/tokenize", {"reasoning_effort": "low"}, "reasoning_effort"),
    ],
)
async def test_without_a_switch_it_is_refused_in_the_clients_words(
    make_api: ApiMaker, path: str, fields: dict[str, Any], param: str
) -> None:
    reply = await make_api().post(path, said_by(path, **fields))
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert error["param"] == param
    assert error["message"].startswith(param)


async def test_a_model_that_never_reasons_takes_none(make_api: ApiMaker) -> None:
    api = make_api(make_api.says("ok"))
    for path, fields in (
        (CHAT, {"reasoning_effort": "none"}),
        (RESPONSES, {"reasoning": {"effort": "none"}}),
        (MESSAGES, {"thinking": {"type": "disabled"}}),
    ):
        assert (await api.post(path, said_by(path, **fields))).status_code == 200


async def test_a_variable_that_says_otherwise_is_refused(levels: ApiMaker) -> None:
    fields = {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}}
    reply = await levels().post(CHAT, said_by(CHAT, **fields))
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "reasoning_effort")
