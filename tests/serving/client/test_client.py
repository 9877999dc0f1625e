"""The client package against a real server."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from serving.client import Client, DeadlineExceeded, InvalidRequest, RetryPolicy, ServerFailed, Stream, Unavailable
from serving.engine.request import FinishReason
from serving.errors import EngineError, OverloadedError
from tests.fakes.engine import Script
from tests.serving.api.conftest import MODEL, WINDOW, ApiMaker
from tests.serving.api.gated_engine import GatedEngine
from tests.serving.api.grpc.serving_grpc import serving_grpc

ROOT = Path(__file__).parents[3]


async def read_to_the_end(stream: Stream) -> str:
    async with stream:
        return "".join([chunk.text async for chunk in stream])


async def test_a_prompt_a_chat_and_token_ids_are_answered_whole(make_api: ApiMaker) -> None:
    async with serving_grpc(make_api(make_api.says("hello"))) as address, Client(address) as client:
        for reply in (
            await client.generate("hi", max_tokens=20),
            await client.chat([{"role": "user", "content": "hi"}]),
            await client.generate(make_api.ids("hi"), max_tokens=20),
        ):
            assert (reply.text, reply.model, reply.choices[0].finish_reason) == ("hello", MODEL, "stop")
            assert reply.usage.completion_tokens == 6


async def test_a_stream_joined_is_the_whole_and_its_last_chunk_has_the_usage(make_api: ApiMaker) -> None:
    async with (
        serving_grpc(make_api(make_api.says("hello"))) as address,
        Client(address) as client,
        client.stream("hi", max_tokens=20) as stream,
    ):
        chunks = [chunk async for chunk in stream]
    assert "".join(chunk.text for chunk in chunks) == "hello"
    assert [chunk.usage is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [True]


async def test_what_was_asked_for_beside_the_text_comes(make_api: ApiMaker) -> None:
    async with serving_grpc(make_api(make_api.says("ab"))) as address, Client(address) as client:
        reply = await client.generate("hi", max_tokens=20, logprobs=2, prompt_logprobs=1, return_token_ids=True, n=2)
    assert [choice.index for choice in reply.choices] == [0, 1]
    first = reply.choices[0]
    assert first.token_ids[:2] == tuple(make_api.ids("ab"))
    assert [entry.text for entry in first.logprobs[:2]] == ["a", "b"]
    assert len(first.logprobs[0].top) == 2
    assert reply.prompt_token_ids == tuple(make_api.ids("hi"))
    assert [entry.token_id for entry in reply.prompt_logprobs] == make_api.ids("i")


async def test_a_tool_call_comes_as_a_value(make_api: ApiMaker) -> None:
    api = make_api(make_api.says('<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'))
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
    async with serving_grpc(api) as address, Client(address) as client:
        reply = await client.chat([{"role": "user", "content": "1+1"}], tools=tools, tool_choice="auto")
    (call,) = reply.choices[0].tool_calls
    assert (call.name, call.arguments, reply.choices[0].finish_reason) == ("add", '{"a": 1}', "tool_calls")


async def test_an_error_says_what_is_wrong_where_and_that_asking_again_does_not_help(make_api: ApiMaker) -> None:
    async with serving_grpc(make_api(make_api.says("x"))) as address, Client(address) as client:
        with pytest.raises(InvalidRequest) as caught:
            await client.generate("hi", temperature=3)
    error = caught.value
    assert (error.param, error.reason, error.retryable) == ("temperature", "invalid_value", False)
    assert "between 0 and 2" in error.message


async def test_a_refusal_that_names_a_time_is_tried_again_then(make_api: ApiMaker) -> None:
    full = Script(token_ids=(), raises=OverloadedError("full", retry_after=0.01))
    api = make_api(full, make_api.says("hello"))
    async with serving_grpc(api) as address, Client(address) as client:
        assert (await client.generate("hi", max_tokens=9)).text == "hello"
        assert len(api.engine.requests) == 2
        api.engine.requests.clear()
        assert await read_to_the_end(client.stream("hi", max_tokens=9)) == "hello"
    assert len(api.engine.requests) == 2


async def test_a_failure_that_would_come_again_is_not_tried_again(make_api: ApiMaker) -> None:
    api = make_api(Script(token_ids=(), raises=EngineError("broken")), make_api.says("hello"))
    async with serving_grpc(api) as address, Client(address) as client:
        with pytest.raises(ServerFailed) as caught:
            await client.generate("hi")
    assert not caught.value.retryable
    assert len(api.engine.requests) == 1


async def test_without_attempts_left_the_refusal_is_raised(make_api: ApiMaker) -> None:
    api = make_api(Script(token_ids=(), raises=OverloadedError("full", retry_after=0.01)))
    async with serving_grpc(api) as address, Client(address, retry=RetryPolicy(attempts=2)) as client:
        with pytest.raises(Unavailable) as caught:
            await client.generate("hi")
    assert (caught.value.reason, caught.value.retryable) == ("overloaded", True)
    assert caught.value.retry_after == 0.01
    assert len(api.engine.requests) == 2


async def test_a_wait_beyond_the_timeout_is_not_begun(make_api: ApiMaker) -> None:
    api = make_api(Script(token_ids=(), raises=OverloadedError("full", retry_after=3600)))
    async with serving_grpc(api) as address, Client(address) as client:
        with pytest.raises(Unavailable):
            await client.generate("hi", timeout=600)
    assert len(api.engine.requests) == 1


async def test_a_failure_after_the_first_chunk_is_raised_and_not_tried_again(make_api: ApiMaker) -> None:
    api = make_api(make_api.says("ab", finish=FinishReason.ERROR, error="broken"))
    api.engine.scripts = [Script(token_ids=make_api.ids("ab"), finish=FinishReason.ERROR, error="broken")]
    async with serving_grpc(api) as address, Client(address) as client:
        chunks = aiter(client.stream("hi", max_tokens=9))
        assert (await anext(chunks)).text == "a"
        with pytest.raises(ServerFailed):
            await anext(chunks)
    assert len(api.engine.requests) == 1


async def test_leaving_a_stream_and_cancelling_a_call_end_the_generation(make_api: ApiMaker) -> None:
    engine = GatedEngine([make_api.says("x" * 1000)], vocab_size=make_api.tokenizer.vocab_size, max_model_len=WINDOW)
    async with serving_grpc(make_api(engine=engine)) as address, Client(address) as client:
        engine.let(2)
        async with client.stream("hi", max_tokens=1000) as stream:
            async for _ in stream:
                break
        await engine.ended.wait()
        engine.ended.clear()
        engine.let(2)
        chunks = aiter(client.stream("hi", max_tokens=1000))
        await anext(chunks)
        await chunks.aclose()  # without a block
        await engine.ended.wait()
        engine.ended.clear()
        engine.started.clear()
        waiting = asyncio.ensure_future(client.generate("hi", max_tokens=1000))
        await engine.started.wait()
        waiting.cancel()
        await engine.ended.wait()
    assert len(engine.closed) == 3


async def test_a_timeout_is_the_generations_too(make_api: ApiMaker) -> None:
    api = make_api(make_api.says("x" * 10, hold_after=1))
    async with serving_grpc(api) as address, Client(address) as client:
        with pytest.raises(DeadlineExceeded):
            await client.generate("hi", max_tokens=9, timeout=0.3)
        with pytest.raises(DeadlineExceeded):
            await read_to_the_end(client.stream("hi", max_tokens=9, timeout=0.3))
        while len(api.engine.closed) < len(api.engine.requests):  # those that came in time
            await asyncio.sleep(0)


async def test_models_tokens_and_readiness_are_told(make_api: ApiMaker) -> None:
    async with serving_grpc(make_api(make_api.says("x"))) as address:
        async with Client(address) as client:
            assert await client.is_ready()
            (model,) = await client.models()
            assert (model.id, model.max_model_len) == (MODEL, WINDOW)
            assert await client.tokenize("hi", add_special_tokens=False) == make_api.ids("hi")
            assert await client.detokenize(make_api.ids("hi")) == "hi"
        gone = address
    async with Client(gone, retry=RetryPolicy(attempts=1)) as client:
        assert not await client.is_ready()
        with pytest.raises(Unavailable) as caught:
            await client.models()
    assert caught.value.retryable


async def test_a_parameter_that_is_none_is_refused_by_its_name(make_api: ApiMaker) -> None:
    async with Client("127.0.0.1:1") as client:
        with pytest.raises(TypeError, match="temprature"):
            await client.generate("hi", temprature=1)  # type: ignore[call-arg]


def test_the_client_loads_neither_jax_nor_the_server() -> None:
    check = """
import sys, serving.client
loaded = [name for name in sys.modules if name.split(".")[0] in {"jax", "models", "sharding", "starlette", "uvicorn"}]
ours = [name for name in sys.modules if name.startswith("serving.") and not name.startswith("serving.client")]
sys.exit(", ".join(loaded + ours) or 0)
"""
    done = subprocess.run([sys.executable, "-c", check], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
