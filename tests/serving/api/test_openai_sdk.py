"""What the `openai` SDK sends is understood, and what comes back is what it expects; over a real socket."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest

from serving.engine.request import FinishReason
from serving.errors import EngineUnavailableError
from tests.fakes.engine import Script
from tests.serving.api.conftest import MODEL, Api, ApiMaker
from tests.serving.api.listening import listening

HI = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}}


@asynccontextmanager
async def _sdk(api: Api) -> AsyncIterator[openai.AsyncOpenAI]:
    async with (
        listening(api.app) as port,
        openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0, timeout=99) as client,
    ):
        yield client


async def test_chat_whole_and_streamed(make_api: ApiMaker) -> None:
    async with _sdk(make_api(make_api.says("Grüß dich 😀", chunk=3))) as client:
        whole = await client.chat.completions.create(model=MODEL, messages=[HI], temperature=0.5, max_tokens=40)
        assert whole.choices[0].message.content == "Grüß dich 😀"
        assert whole.choices[0].finish_reason == "stop"
        assert whole.usage is not None
        assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
        assert whole._request_id is not None
        stream = await client.chat.completions.create(
            model=MODEL, messages=[HI], stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        assert chunks[0].choices[0].delta.role == "assistant"
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "Grüß dich 😀"
        assert chunks[-1].usage == whole.usage


async def test_the_streaming_helper_collects_a_whole_answer(make_api: ApiMaker) -> None:
    async with (
        _sdk(make_api(make_api.says("abc"))) as client,
        client.chat.completions.stream(model=MODEL, messages=[HI]) as stream,
    ):
        final = await stream.get_final_completion()
    assert final.choices[0].message.content == "abc"


async def test_completions_whole_and_streamed(make_api: ApiMaker) -> None:
    async with _sdk(make_api(make_api.says("abc"))) as client:
        whole = await client.completions.create(model=MODEL, prompt=["x", "y"], n=2, logprobs=1)
        assert [choice.text for choice in whole.choices] == ["abc"] * 4
        assert whole.choices[0].logprobs is not None
        assert whole.choices[0].logprobs.tokens == ["a", "b", "c", "</s>"]
        stream = await client.completions.create(model=MODEL, prompt="x", stream=True)
        assert "".join([chunk.choices[0].text async for chunk in stream]) == "abc"


async def test_several_choices_with_logprobs(make_api: ApiMaker) -> None:
    async with _sdk(make_api(make_api.says("ab"))) as client:
        whole = await client.chat.completions.create(model=MODEL, messages=[HI], n=2, logprobs=True, top_logprobs=3)
        assert [choice.index for choice in whole.choices] == [0, 1]
        for choice in whole.choices:
            assert choice.logprobs is not None
            assert choice.logprobs.content is not None
            assert [entry.token for entry in choice.logprobs.content[:2]] == ["a", "b"]
            assert len(choice.logprobs.content[0].top_logprobs) == 3


async def test_a_tool_call_goes_there_and_its_result_back(make_api: ApiMaker) -> None:
    says = make_api.says('<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>')
    async with _sdk(make_api(says, make_api.says("It is 4."))) as client:
        first = await client.chat.completions.create(model=MODEL, messages=[HI], tools=[TOOL], tool_choice="auto")
        message = first.choices[0].message
        assert message.tool_calls is not None
        (call,) = message.tool_calls
        assert json.loads(call.function.arguments) == {"a": 1}
        result = {"role": "tool", "tool_call_id": call.id, "content": "4"}
        second = await client.chat.completions.create(model=MODEL, messages=[HI, message, result], tools=[TOOL])
        assert second.choices[0].message.content == "It is 4."


async def test_what_the_sdk_has_parsed_comes_back(make_api: ApiMaker) -> None:
    says = make_api.says('<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>')
    api = make_api(says, make_api.says('{"sum": 4}'), make_api.says("Four."))
    strict: Any = {"type": "function", "function": {**TOOL["function"], "strict": True}}
    form = {"type": "json_schema", "json_schema": {"name": "sum", "schema": {"type": "object"}}}
    async with _sdk(api) as client:
        async with client.chat.completions.stream(model=MODEL, messages=[HI], tools=[strict]) as stream:
            call = (await stream.get_final_completion()).choices[0].message
        assert call.tool_calls is not None
        assert call.tool_calls[0].function.parsed_arguments == {"a": 1}
        result = {"role": "tool", "tool_call_id": call.tool_calls[0].id, "content": "4"}
        said: Any = [HI, call.model_dump(), result]
        answer = await client.chat.completions.create(model=MODEL, messages=said, response_format=form)
        dumped = {**answer.choices[0].message.model_dump(), "parsed": {"sum": 4}}
        last = await client.chat.completions.create(model=MODEL, messages=[*said, dumped, HI])
        assert last.choices[0].message.content == "Four."
    assert "parsed" not in api.service.generator.detokenize(list(api.engine.requests[-1].prompt_token_ids))


async def test_refusals_are_the_sdks_exceptions(make_api: ApiMaker) -> None:
    lost = Script(token_ids=[], raises=EngineUnavailableError("the engine restarts"))
    async with _sdk(make_api(lost)) as client:
        with pytest.raises(openai.BadRequestError) as bad:
            await client.chat.completions.create(model=MODEL, messages=[HI], temperature=9)
        assert bad.value.param == "temperature"
        with pytest.raises(openai.NotFoundError) as missing:
            await client.chat.completions.create(model="other", messages=[HI])
        assert missing.value.code == "model_not_found"
        with pytest.raises(openai.InternalServerError) as unavailable:
            await client.chat.completions.create(model=MODEL, messages=[HI])
        assert unavailable.value.status_code == 503


async def test_a_stream_that_fails_raises_in_the_sdk(make_api: ApiMaker) -> None:
    failing = Script(token_ids=make_api.ids("abc"), finish=FinishReason.ERROR, error="device lost")
    async with _sdk(make_api(failing)) as client:
        stream = await client.chat.completions.create(model=MODEL, messages=[HI], stream=True)
        seen: list[str] = []
        error: openai.APIError | None = None
        try:
            async for chunk in stream:
                seen.append(chunk.choices[0].delta.content or "")
        except openai.APIError as raised:
            error = raised
        assert error is not None
        assert error.message == "device lost"
        assert "".join(seen) == "ab"


async def test_models_are_listed(make_api: ApiMaker) -> None:
    async with _sdk(make_api()) as client:
        assert [model.id async for model in client.models.list()] == [MODEL]
        assert (await client.models.retrieve(MODEL)).id == MODEL
