"""Reasoning and calls in each protocol: a stream joined is the whole answer."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from serving.client import Client
from serving.generation.chat_format import ChatFormat
from serving.generation.tokenizer import Tokenizer
from tests.serving.api.conftest import MODEL, TEMPLATE, Api, ApiMaker
from tests.serving.api.grpc.serving_grpc import serving_grpc
from tests.serving.api.responses.asking import create, prompt, stream

PATIENCE = 180.0  # seconds; only a broken test waits that long
HI = [{"role": "user", "content": "hi"}]
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
ADD_CALL = '[TOOL_CALLS][{"name": "add", "arguments": {"a": 1}}]'
REMEMBERS = "{% for m in messages if m.reasoning_content %}[was: {{ m.reasoning_content }}]{% endfor %}"


def templates(tokenizer: Tokenizer, marks: str) -> ApiMaker:
    """Of a model whose template has these marks in it."""
    chat_format = ChatFormat({"default": f"{{# {marks} #}}{REMEMBERS}{TEMPLATE}"}, {}, source="marked")
    return ApiMaker(tokenizer, chat_format)


@pytest.fixture(scope="module")
def thinking(tokenizer: Tokenizer) -> Iterator[ApiMaker]:
    maker = templates(tokenizer, "<think>")
    yield maker
    maker.chat_format.close()


@pytest.fixture(scope="module")
def harmony(tokenizer: Tokenizer) -> Iterator[ApiMaker]:
    maker = templates(tokenizer, "<|channel|>")
    yield maker
    maker.chat_format.close()


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": HI, **fields}


async def message_of(api: Api, **fields: Any) -> dict[str, Any]:
    reply = await api.post("/v1/chat/completions", chat(**fields))
    assert reply.status_code == 200, reply.text
    return reply.json()["choices"][0]["message"]


async def joined(api: Api, **fields: Any) -> dict[str, Any]:
    deltas = [chunk["choices"][0]["delta"] for chunk in await api.events("/v1/chat/completions", chat(**fields))]
    calls = [call for delta in deltas for call in delta.get("tool_calls", [])]
    return {
        "reasoning_content": "".join(delta.get("reasoning_content", "") for delta in deltas),
        "content": "".join(delta.get("content", "") for delta in deltas),
        "tool_calls": [{key: call[key] for key in ("type", "function")} for call in calls],
    }


@pytest.mark.parametrize("chunk", [1, 3, 500])
async def test_a_chat_has_its_reasoning_beside_its_content(thinking: ApiMaker, chunk: int) -> None:
    api = thinking(thinking.says("<think>\nHm, two.\n</think>\n\nFour <b>.", chunk=chunk))
    assert await joined(api) == {"reasoning_content": "Hm, two.", "content": "Four <b>.", "tool_calls": []}
    whole = await message_of(api)
    assert (whole["reasoning_content"], whole["content"]) == ("Hm, two.", "Four <b>.")


async def test_usage_tells_how_many_tokens_were_reasoning(thinking: ApiMaker) -> None:
    reasons, all_of_it = len(thinking.ids("<think>Hm, two.")), "<think>Hm, two.</think>Four."
    api = thinking(thinking.says(all_of_it))
    usage = (await api.post("/v1/chat/completions", chat())).json()["usage"]
    assert usage["completion_tokens_details"] == {"reasoning_tokens": reasons}
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = await api.events("/v1/chat/completions", chat(stream_options=options))
    assert chunks[-1]["usage"] == chunks[-2]["usage"] == usage
    assert (await create(api))["usage"]["output_tokens_details"] == {"reasoning_tokens": reasons}
    plain = thinking(thinking.says("Four."))
    assert "completion_tokens_details" not in (await plain.post("/v1/chat/completions", chat())).json()["usage"]
    assert (await create(plain))["usage"]["output_tokens_details"] == {"reasoning_tokens": 0}


async def test_messages_tell_how_many_tokens_were_thinking(thinking: ApiMaker) -> None:
    api = thinking(thinking.says("<think>Hm, two.</think>Four."))
    body = {"model": MODEL, "max_tokens": 100, "messages": HI}
    details = {"thinking_tokens": len(thinking.ids("<think>Hm, two."))}
    usage = (await api.post("/v1/messages", body)).json()["usage"]
    assert usage["output_tokens_details"] == details
    streamed = await api.post("/v1/messages", {**body, "stream": True})
    events = [json.loads(line[6:]) for line in streamed.text.split("\n") if line.startswith("data: ")]
    assert "output_tokens_details" not in events[0]["message"]["usage"]
    assert events[-2]["usage"] == usage
    plain = thinking(thinking.says("Four."))
    assert "output_tokens_details" not in (await plain.post("/v1/messages", body)).json()["usage"]


async def test_grpc_tells_how_many_tokens_were_reasoning(thinking: ApiMaker) -> None:
    said = "<think>Hm, two.</think>Four."
    api = thinking(thinking.says(said))
    async with serving_grpc(api) as address, Client(address) as client:
        reply = await client.chat(HI, n=2, timeout=PATIENCE)
        async with client.stream_chat(HI, n=2, timeout=PATIENCE) as stream:
            *_, last = [chunk async for chunk in stream]
        bare = await client.generate("hi", max_tokens=100, timeout=PATIENCE)
    assert reply.usage.reasoning_tokens == 2 * len(thinking.ids("<think>Hm, two."))
    assert last.usage == reply.usage
    assert bare.usage.reasoning_tokens == 0


async def test_reasoning_can_be_left_out(thinking: ApiMaker) -> None:
    api = thinking(thinking.says("<think>\nHm.</think>Four."))
    assert "reasoning_content" not in await message_of(api, include_reasoning=False)
    assert (await joined(api, include_reasoning=False))["reasoning_content"] == ""


@pytest.mark.parametrize("chunk", [1, 500])
async def test_channels_and_their_calls_are_read(harmony: ApiMaker, chunk: int) -> None:
    call = '<|start|>assistant<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": 1}'
    api = harmony(harmony.says(f"<|channel|>analysis<|message|>Hm.<|end|>{call}", chunk=chunk))
    made = {"type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    assert await joined(api, tools=[ADD]) == {"reasoning_content": "Hm.", "content": "", "tool_calls": [made]}


async def test_a_deployment_may_name_the_form_of_calls(tokenizer: Tokenizer) -> None:
    chat_format = ChatFormat({"default": TEMPLATE}, {}, source="named", calls="mistral")
    maker = ApiMaker(tokenizer, chat_format)
    whole = await message_of(maker(maker.says(ADD_CALL)), tools=[ADD])
    assert whole["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a": 1}'}
    chat_format.close()


async def test_tools_are_refused_where_the_form_of_calls_is_not_known(tokenizer: Tokenizer) -> None:
    chat_format = ChatFormat({"default": "{{ tools }}{{ messages[0].content }}"}, {}, source="unknown")
    maker = ApiMaker(tokenizer, chat_format)
    reply = await maker(maker.says("x")).post("/v1/chat/completions", chat(tools=[ADD]))
    assert reply.status_code == 400
    assert "model.tool_calls" in reply.json()["error"]["message"]
    chat_format.close()


async def test_messages_have_a_block_of_thinking_that_may_come_back(thinking: ApiMaker) -> None:
    api = thinking(thinking.says("<think>Hm.</think>Four."))
    body = {"model": MODEL, "max_tokens": 100, "messages": HI}
    content = (await api.post("/v1/messages", body)).json()["content"]
    assert content == [{"type": "thinking", "thinking": "Hm.", "signature": ""}, {"type": "text", "text": "Four."}]
    streamed = await api.post("/v1/messages", {**body, "stream": True})
    events = [
        json.loads(line.removeprefix("data: ")) for line in streamed.text.split("\n") if line.startswith("data: ")
    ]
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert "".join(delta.get("thinking", "") for delta in deltas) == "Hm."
    assert "".join(delta.get("text", "") for delta in deltas) == "Four."
    again = {**body, "messages": [*HI, {"role": "assistant", "content": content}, *HI]}
    assert (await api.post("/v1/messages", again)).status_code == 200
    assert "[was: Hm.]" in prompt(api)


async def test_a_response_has_an_item_of_reasoning_that_the_next_turn_reads(thinking: ApiMaker) -> None:
    api = thinking(thinking.says("<think>Hm.</think>Four.", chunk=2))
    first = await create(api)
    reasoning, message = first["output"]
    assert reasoning["type"] == "reasoning"
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "Hm."}]
    assert message["content"][0]["text"] == "Four."
    events = await stream(api, previous_response_id=first["id"])
    assert "[was: Hm.]" in prompt(api)
    told = [event["delta"] for event in events if event["type"] == "response.reasoning_text.delta"]
    assert "".join(told) == "Hm."
    done = [event["item"]["type"] for event in events if event["type"] == "response.output_item.done"]
    assert done == ["reasoning", "message"]
    sent_back = [{"role": "user", "content": "hi"}, *first["output"], {"role": "user", "content": "and?"}]
    await create(api, sent_back)
    assert "[was: Hm.]" in prompt(api)


async def test_a_durable_stream_is_read_again_as_it_was(thinking: ApiMaker) -> None:
    api = thinking(thinking.says("<think>Hm.</think>Four.", chunk=2))
    reply = await api.post("/v1/chat/completions", chat(stream=True, durable=True))
    stream_id = reply.text.split("id: ", 1)[1].split(":", 1)[0]
    again = await api.get(f"/v1/streams/{stream_id}?after=0")
    data = [[line for line in text.split("\n") if line.startswith("data: ")] for text in (reply.text, again.text)]
    assert data[0] == data[1]
    assert "reasoning_content" in data[1][1]
