"""Anthropic's protocol, through its own SDK over a real socket, and as it stands on the wire."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import pytest

from serving.access import AccessConfig, AuthConfig
from serving.engine.request import FinishReason
from serving.gateway.gateway import Gateway
from serving.gateway.identity import Identity
from serving.gateway.key_store import KeyStore
from serving.gateway.principal import Scope
from tests.fakes.engine import Script
from tests.serving.api.conftest import MODEL, Api, ApiMaker
from tests.serving.api.listening import listening

PATH = "/v1/messages"
HI: Any = {"role": "user", "content": "hi"}
ADD: Any = {"name": "add", "description": "Adds.", "input_schema": {"type": "object"}}
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'


@asynccontextmanager
async def _sdk(api: Api, key: str = "none") -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with (
        listening(api.app) as port,
        anthropic.AsyncAnthropic(
            base_url=f"http://127.0.0.1:{port}", api_key=key, max_retries=0, timeout=120
        ) as client,
    ):
        yield client


def _body(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "max_tokens": 400, "messages": [HI], **fields}


async def _prompt(api: Api, **fields: Any) -> str:
    """The text that the model was given."""
    reply = await api.post(PATH, _body(**fields))
    assert reply.status_code == 200, reply.text
    return api.service.generator.detokenize(list(api.engine.requests[-1].prompt_token_ids))


async def test_the_sdk_knows_the_id_of_a_request(make_api: ApiMaker) -> None:
    async with _sdk(make_api(make_api.says("ok"))) as client:
        raw = await client.messages.with_raw_response.create(model=MODEL, max_tokens=4, messages=[HI])
        with pytest.raises(anthropic.BadRequestError) as refused:
            await client.messages.create(model=MODEL, max_tokens=0, messages=[HI])
    told: Any = await raw.parse()
    assert told._request_id == raw.headers["x-request-id"]
    assert refused.value.request_id == refused.value.response.headers["x-request-id"]


async def test_whole_and_streamed_answers_are_the_same(make_api: ApiMaker) -> None:
    async with _sdk(make_api(make_api.says("Grüß dich 😀", chunk=3, cached_tokens=4))) as client:
        whole = await client.messages.create(model=MODEL, max_tokens=400, messages=[HI], system="Be kind.")
        async with client.messages.stream(model=MODEL, max_tokens=400, messages=[HI], system="Be kind.") as stream:
            texts = [text async for text in stream.text_stream]
            streamed = await stream.get_final_message()
    assert "".join(texts) == "Grüß dich 😀"
    assert len(texts) > 1
    assert [block.to_dict() for block in streamed.content] == [block.to_dict() for block in whole.content]
    assert (whole.stop_reason, streamed.stop_reason) == ("end_turn", "end_turn")
    assert streamed.usage.to_dict() == whole.usage.to_dict()
    assert whole.usage.cache_read_input_tokens == 4


async def test_the_events_of_a_stream_come_by_name_and_in_order(make_api: ApiMaker) -> None:
    reply = await make_api(make_api.says(f"Wait. {CALL} Done.", chunk=200)).post(PATH, _body(stream=True, tools=[ADD]))
    frames = [frame.split("\n") for frame in reply.text.split("\n\n") if frame]
    names = [line.removeprefix("event: ") for _, line, _ in frames]
    data = [json.loads(line.removeprefix("data: ")) for _, _, line in frames]
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    assert names == ["message_start", *block, *block, *block, "message_delta", "message_stop"]
    assert names == [event["type"] for event in data]
    kinds = [event["content_block"]["type"] for event in data if event["type"] == "content_block_start"]
    assert kinds == ["text", "tool_use", "text"]
    assert [event["index"] for event in data if "index" in event] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert data[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}


@pytest.mark.parametrize("chunk", [1, 7, 200])
async def test_text_and_calls_stand_in_the_order_of_the_answer(make_api: ApiMaker, chunk: int) -> None:
    api = make_api(make_api.says(f"a {CALL} b {CALL}", chunk=chunk))
    content = (await api.post(PATH, _body(tools=[ADD]))).json()["content"]
    assert [block["type"] for block in content] == ["text", "tool_use", "text", "tool_use"]


async def test_a_call_goes_there_and_its_result_back(make_api: ApiMaker) -> None:
    api = make_api(make_api.says(CALL), make_api.says("It is 4."))
    async with _sdk(api) as client:
        async with client.messages.stream(model=MODEL, max_tokens=400, messages=[HI], tools=[ADD]) as stream:
            first = await stream.get_final_message()
        assert first.stop_reason == "tool_use"
        (call,) = first.content
        assert call.type == "tool_use"
        assert (call.name, call.input) == ("add", {"a": 1})
        result: Any = {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": call.id, "content": "no", "is_error": True},
                {"type": "text", "text": "again?", "cache_control": {"type": "ephemeral"}},
            ],
        }
        turns: Any = [HI, {"role": "assistant", "content": first.content}, result]
        second = await client.messages.create(model=MODEL, max_tokens=400, messages=turns, tools=[ADD])
    assert second.content[0].type == "text"
    assert second.content[0].text == "It is 4."
    prompt = api.service.generator.detokenize(list(api.engine.requests[-1].prompt_token_ids))
    assert "<|im_start|>tool\nError: no<|im_end|>\n<|im_start|>user\nagain?<|im_end|>" in prompt
    assert '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>' in prompt


async def test_blocks_come_back_with_every_member_that_the_sdk_dumps(make_api: ApiMaker) -> None:
    api = make_api(make_api.says(f"So: {CALL}"), make_api.says("It is 4."))
    async with _sdk(api) as client:
        first = await client.messages.create(model=MODEL, max_tokens=400, messages=[HI], tools=[ADD])
        said: Any = [block.model_dump() for block in first.content]
        assert any(value is None for block in said for value in block.values())
        result = {"type": "tool_result", "tool_use_id": said[-1]["id"], "is_error": None, "nobody_knows": None}
        result["content"] = [{"type": "text", "text": "4", "citations": None, "nobody_knows": None}]
        turns: Any = [HI, {"role": "assistant", "content": said}, {"role": "user", "content": [result]}]
        second = await client.messages.create(model=MODEL, max_tokens=400, messages=turns, tools=[ADD])
    assert second.content[0].type == "text"
    assert second.content[0].text == "It is 4."


@pytest.mark.parametrize("number", ["123456789012345678901234567890", "NaN"])
async def test_a_call_is_the_same_whole_and_streamed_whatever_its_numbers(make_api: ApiMaker, number: str) -> None:
    call = f'<tool_call>{{"name": "add", "arguments": {{"a": {number}}}}}</tool_call>'
    api = make_api(make_api.says(call))
    asked = _body(tools=[{"name": "add", "input_schema": {"type": "object"}}])
    whole = await api.post(PATH, asked)
    assert whole.status_code == 200, whole.text
    streamed = (await api.post(PATH, {**asked, "stream": True})).text
    events = [json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: ")]
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    (block,) = whole.json()["content"]
    told = "".join(delta.get("partial_json", delta.get("text", "")) for delta in deltas)
    shown = block["text"] if block["type"] == "text" else json.dumps(block["input"])
    assert told == shown


async def test_a_last_message_of_the_assistants_is_continued(make_api: ApiMaker) -> None:
    prompt = await _prompt(make_api(make_api.says("x")), messages=[HI, {"role": "assistant", "content": "So"}])
    assert prompt.endswith("<|im_start|>assistant\nSo")


async def test_counted_tokens_are_those_of_the_prompt(make_api: ApiMaker) -> None:
    api = make_api(make_api.says("x"))
    async with _sdk(api) as client:
        counted = await client.messages.count_tokens(model=MODEL, messages=[HI], system="Be kind.", tools=[ADD])
        whole = await client.messages.create(
            model=MODEL, max_tokens=5, messages=[HI], system=[{"type": "text", "text": "Be kind."}], tools=[ADD]
        )
    assert counted.input_tokens == whole.usage.input_tokens


async def test_sampling_is_the_engines(make_api: ApiMaker) -> None:
    api = make_api(make_api.says("one two three"))
    body = _body(temperature=0.5, top_p=0.9, top_k=7, stop_sequences=["two"], max_tokens=50, metadata={"user_id": "u"})
    reply = (await api.post(PATH, body)).json()
    assert reply["content"] == [{"type": "text", "text": "one "}]
    assert (reply["stop_reason"], reply["stop_sequence"]) == ("stop_sequence", "two")
    sampling = api.engine.requests[0].sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.max_tokens) == (0.5, 0.9, 7, 50)
    assert (await api.post(PATH, _body(max_tokens=2))).json()["stop_reason"] == "max_tokens"


async def test_a_call_can_be_demanded_and_forbidden(make_api: ApiMaker) -> None:
    api = make_api(make_api.says(CALL))
    for choice in (
        {"type": "any"},
        {"type": "tool", "name": "add"},
        {"type": "auto", "disable_parallel_tool_use": True},
    ):
        assert (await api.post(PATH, _body(tools=[ADD], tool_choice=choice))).status_code == 200
        assert api.engine.requests[-1].grammar is not None
    assert "add" not in await _prompt(api, tools=[ADD], tool_choice={"type": "none"})
    output = {"format": {"type": "json_schema", "schema": {"type": "object"}}}
    await api.post(PATH, _body(output_config=output))
    assert api.engine.requests[-1].grammar is not None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2000}, "thinking"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "adaptive"}}, "thinking.type"),
        ({"mcp_servers": []}, "mcp_servers"),
        ({"container": "x"}, "container"),
        ({"temperature": 9}, "temperature"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"tools": [{"type": "bash_20250124", "name": "bash", "input_schema": {}}]}, "tools[0].type"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [ADD], "tool_choice": {"type": "tool", "name": "sub"}}, "tool_choice.name"),
        ({"tools": [ADD], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "assistant", "content": []}]}, "messages[0].content"),
        ({"best_of": 1}, "best_of"),
    ],
)
async def test_what_is_not_offered_is_refused_by_name(make_api: ApiMaker, fields: dict[str, Any], param: str) -> None:
    reply = await make_api().post(PATH, _body(**fields))
    said = reply.json()
    assert (reply.status_code, said["type"]) == (400, "error")
    assert (said["error"]["type"], said["error"]["param"]) == ("invalid_request_error", param)
    assert param.split(".")[0] in said["error"]["message"]


async def test_the_sdks_tool_runner_goes_on_without_the_thread_that_it_asks_for_first(make_api: ApiMaker) -> None:
    @anthropic.beta_async_tool
    async def add(a: int) -> str:
        """Adds."""
        return str(a + 1)

    async with _sdk(make_api(make_api.says(CALL), make_api.says("It is 2."))) as client:
        runner = client.beta.messages.tool_runner(model=MODEL, max_tokens=400, tools=[add], messages=[HI])
        last = await runner.until_done()
    assert [block.to_dict().get("text") for block in last.content] == ["It is 2."]


async def test_failures_are_the_sdks_exceptions(make_api: ApiMaker, tmp_path: Path) -> None:
    keys = KeyStore(tmp_path / "keys.sqlite")
    access = AccessConfig(auth=AuthConfig(keys=Path("keys.sqlite")))
    failing = Script(token_ids=make_api.ids("abc"), finish=FinishReason.ERROR, error="device lost")
    api = make_api(failing, gateway=Gateway(access, identity=Identity(access, keys=keys)))
    async with _sdk(api) as nobody:
        with pytest.raises(anthropic.AuthenticationError) as unknown:
            await nobody.messages.create(model=MODEL, max_tokens=5, messages=[HI])
        assert unknown.value.type == "authentication_error"
    async with _sdk(api, keys.create("acme", [Scope.INFERENCE]).text) as client:
        with pytest.raises(anthropic.NotFoundError):
            await client.messages.create(model="other", max_tokens=5, messages=[HI])
        seen: list[str] = []
        with pytest.raises(anthropic.APIStatusError) as lost:
            await _read(client, seen)
        assert lost.value.type == "api_error"
        assert "device lost" in lost.value.message
        assert "".join(seen) == "ab"


async def _read(client: anthropic.AsyncAnthropic, seen: list[str]) -> None:
    async with client.messages.stream(model=MODEL, max_tokens=5, messages=[HI]) as stream:
        async for text in stream.text_stream:
            seen.append(text)
