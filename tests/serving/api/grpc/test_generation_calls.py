"""Generation over gRPC: what HTTP answers, in messages; each failure a status with its details."""

import asyncio
import json

import grpc
import grpc.aio
import pytest

from serving import errors
from serving.api.grpc import generation_calls
from serving.api.grpc.status import rich_status
from serving.api.service import StreamLimits
from serving.client import schema
from serving.engine.request import FinishReason
from serving.errors import EngineUnavailableError, OverloadedError, RateLimitedError, WeftError
from tests.fakes.engine import Script
from tests.serving.api.conftest import MODEL, WINDOW, Api, ApiMaker
from tests.serving.api.gated_engine import GatedEngine
from tests.serving.api.grpc.serving_grpc import channel_to, chat, details_of, streaming, unary

Generate = schema.GenerateRequest


def gated(make_api: ApiMaker, text: str = "x" * 1000, **options) -> tuple[Api, GatedEngine]:
    engine = GatedEngine([make_api.says(text)], vocab_size=make_api.tokenizer.vocab_size, max_model_len=WINDOW)
    return make_api(engine=engine, **options), engine


async def test_a_prompt_is_answered_whole(make_api: ApiMaker) -> None:
    api = make_api(make_api.says("hello"))
    async with channel_to(api) as channel:
        reply = await unary(channel, "Generate", schema.GenerateReply)(Generate(prompt="hi"))
    assert reply.model == MODEL
    assert [choice.text for choice in reply.choices] == ["hello"]
    assert reply.choices[0].finish_reason == 1
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (2, 6)


async def test_a_chat_is_streamed_and_the_pieces_joined_are_the_whole(make_api: ApiMaker) -> None:
    api = make_api(make_api.says("hello"))
    async with channel_to(api) as channel:
        chunks = [chunk async for chunk in streaming(channel)(chat())]
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == "hello"
    assert [chunk.HasField("usage") for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert [bool(chunk.id) for chunk in chunks] == [True] + [False] * (len(chunks) - 1)


async def test_a_stop_string_and_a_stop_token_are_told_apart(make_api: ApiMaker) -> None:
    api = make_api(make_api.says("hello"))
    (token,) = make_api.ids("l")
    async with channel_to(api) as channel:
        call = unary(channel, "Generate", schema.GenerateReply)
        by_text = (await call(Generate(prompt="hi", stop=["lo"]))).choices[0]
        by_token = (await call(Generate(prompt="hi", stop_token_ids=[token]))).choices[0]
    assert (by_text.text, by_text.stop_string) == ("hel", "lo")
    assert (by_token.text, by_token.stop_token_id) == ("he", token)


async def test_a_cancelled_call_aborts_every_choice_before_its_next_token(make_api: ApiMaker) -> None:
    api, engine = gated(make_api)
    async with channel_to(api) as channel:
        stream = streaming(channel)(chat(n=3))
        engine.let(6)
        await stream.read()
        stream.cancel()
        while len(engine.closed) < 3:
            await asyncio.sleep(0)
        emitted = engine.emitted
        engine.let(10)
        waiting = asyncio.ensure_future(_generate(channel, chat()))
        await engine.started.wait()
        waiting.cancel()
    assert emitted <= 6 + 3
    assert api.service.slots.open == 0


async def test_a_call_past_its_deadline_frees_the_engine_and_its_slot(make_api: ApiMaker) -> None:
    api = make_api(make_api.says("x" * 9, hold_after=1))
    async with channel_to(api) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await unary(channel, "Generate", schema.GenerateReply)(chat(), timeout=0.5)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        while api.service.slots.open or len(api.engine.closed) < len(api.engine.requests):
            await asyncio.sleep(0)


async def test_a_calls_deadline_is_the_engines(make_api: ApiMaker) -> None:
    api = make_api(make_api.says("x"))
    async with channel_to(api) as channel:
        call = unary(channel, "Generate", schema.GenerateReply)
        await call(chat(), timeout=500)
        await call(chat())
        await call(chat(timeout_seconds=7), timeout=500)
    found = [request.deadline_seconds for request in api.engine.requests]
    assert found[0] is not None
    assert 0 < found[0] <= 500
    assert found[1:] == [None, 7]


@pytest.mark.parametrize(
    ("request_", "code", "param", "reason"),
    [
        (Generate(), "INVALID_ARGUMENT", "prompt", "missing_required_parameter"),
        (Generate(prompt=""), "INVALID_ARGUMENT", "prompt", "invalid_value"),
        (Generate(prompt="x", temperature=float("nan")), "INVALID_ARGUMENT", "temperature", "invalid_value"),
        (Generate(prompt="x", logit_bias={5: 1e300}), "INVALID_ARGUMENT", "logit_bias", "invalid_value"),
        (Generate(prompt="x", logit_bias={5: float("inf")}), "INVALID_ARGUMENT", 'logit_bias["5"]', "invalid_value"),
        (Generate(prompt="x", priority=9), "INVALID_ARGUMENT", "priority", "invalid_value"),
        (Generate(prompt="x", top_k=-7), "INVALID_ARGUMENT", "top_k", "invalid_value"),
        (Generate(prompt="x", model="other"), "NOT_FOUND", "model", "model_not_found"),
        (Generate(prompt="x", max_tokens=9999), "OUT_OF_RANGE", "max_tokens", "context_length_exceeded"),
        (Generate(prompt_token_ids={"ids": [7, 99999]}), "INVALID_ARGUMENT", "prompt_token_ids", "invalid_value"),
        (Generate(prompt_token_ids={}), "INVALID_ARGUMENT", "prompt_token_ids", "invalid_value"),
        (Generate(messages={}), "INVALID_ARGUMENT", "messages", "invalid_value"),
        (Generate(messages={"messages": [{}]}), "INVALID_ARGUMENT", "messages[0].role", "missing_required_parameter"),
        (Generate(messages={"messages": [{"role": 77}]}), "INVALID_ARGUMENT", "messages[0].role", "invalid_value"),
        (chat(logprobs=21), "INVALID_ARGUMENT", "logprobs", "invalid_value"),
        (chat(tools_json="["), "INVALID_ARGUMENT", "tools_json", "invalid_json"),
        (chat(tools_json='[{"type": "x"}]'), "INVALID_ARGUMENT", "tools[0].type", "invalid_value"),
        (chat(tools_json='[{"a": 1, "a": 2}]'), "INVALID_ARGUMENT", "tools[0].a", "duplicate_key"),
        (chat(chat_template_kwargs_json="[]"), "INVALID_ARGUMENT", "chat_template_kwargs", "invalid_value"),
        (chat(chat_template_kwargs_json="[" * 99), "INVALID_ARGUMENT", "chat_template_kwargs_json", None),
        (Generate(prompt="x", tools_json="[]"), "UNIMPLEMENTED", "tools", "unsupported"),
        (Generate(prompt="x", parallel_tool_calls=True), "INVALID_ARGUMENT", "parallel_tool_calls", None),
    ],
)
async def test_a_field_that_is_wrong_is_named(
    make_api: ApiMaker, request_: Generate, code: str, param: str, reason: str | None
) -> None:
    async with channel_to(make_api(make_api.says("x"))) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await unary(channel, "Generate", schema.GenerateReply)(request_)
    details = details_of(caught.value)
    assert caught.value.code().name == code
    assert details["ErrorInfo"].metadata["param"] == param
    assert [violation.field for violation in details["BadRequest"].field_violations] == [param]
    assert reason in (None, details["ErrorInfo"].reason)
    assert "RetryInfo" not in details


@pytest.mark.parametrize(
    ("error", "code", "seconds"),
    [
        (OverloadedError("full", retry_after=2.5), "UNAVAILABLE", 2.5),
        (RateLimitedError("slow down", retry_after=7, code="concurrency"), "RESOURCE_EXHAUSTED", 7),
        (EngineUnavailableError("starting"), "UNAVAILABLE", 5),
        (ValueError("secret text"), "INTERNAL", None),
    ],
)
async def test_a_failure_says_whether_and_when_to_ask_again_and_nothing_it_should_not(
    make_api: ApiMaker, error: Exception, code: str, seconds: float | None
) -> None:
    async with channel_to(make_api(Script(token_ids=(), raises=error))) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await unary(channel, "Generate", schema.GenerateReply)(chat())
    details = details_of(caught.value)
    assert caught.value.code().name == code
    assert ("RetryInfo" in details) == (seconds is not None)
    if seconds is not None:
        assert details["RetryInfo"].retry_delay.ToMilliseconds() == seconds * 1000
    assert "secret" not in str(caught.value)


async def test_a_stream_that_breaks_ends_with_a_status_after_what_it_had(make_api: ApiMaker) -> None:
    broken = Script(token_ids=make_api.ids("ab"), finish=FinishReason.ERROR, error="broken")
    async with channel_to(make_api(broken)) as channel:
        stream = streaming(channel)(chat())
        assert (await stream.read()).choices[0].text == "a"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream.read()
    assert caught.value.code() is grpc.StatusCode.INTERNAL


def test_every_error_of_weft_has_a_code_of_grpc() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, WeftError)]
    for kind in kinds:
        assert kind.grpc_code in grpc.StatusCode.__members__, kind
        if kind.retryable:
            assert kind.grpc_code in ("UNAVAILABLE", "RESOURCE_EXHAUSTED"), kind
    status = rich_status(EngineUnavailableError("x", code="engine_lost"))
    assert status.code == grpc.StatusCode.UNAVAILABLE.value[0]


async def test_a_message_larger_than_the_servers_bound_is_refused_unread(make_api: ApiMaker) -> None:
    api = make_api(make_api.says("x"))
    async with channel_to(api) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await unary(channel, "Generate", schema.GenerateReply)(Generate(prompt="x" * (2 << 20)))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert not api.engine.requests


async def test_a_reader_that_takes_nothing_is_cut_off_and_its_generation_ends(make_api: ApiMaker) -> None:
    api, engine = gated(make_api, "x" * 4000, streams=StreamLimits(slow_reader_seconds=0.2))
    async with channel_to(api, ("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1024)) as channel:
        stream = streaming(channel)(chat(logprobs=20, max_tokens=4000))
        engine.let(5000)
        await engine.ended.wait()
        assert len(engine.closed) == 1
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await _read_all(stream)
    assert caught.value.code() is grpc.StatusCode.ABORTED
    assert details_of(caught.value)["ErrorInfo"].reason == "slow_reader"


async def test_the_reply_has_the_servers_request_id_and_the_log_line_no_text(
    make_api: ApiMaker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with channel_to(make_api(make_api.says("hello"))) as channel:
        call = unary(channel, "Generate", schema.GenerateReply)(chat("a secret"))
        reply = await call
        assert dict(await call.initial_metadata())["x-request-id"] == reply.id
    (fields,) = [record.fields for record in caplog.records if record.message == "request"]
    assert (fields["request_id"], fields["route"], fields["completion_tokens"]) == (reply.id, "Generate", 6)
    assert "secret" not in json.dumps(fields)


async def _read_all(stream: grpc.aio.UnaryStreamCall) -> None:
    async for _ in stream:
        pass


async def _generate(channel: grpc.aio.Channel, request_) -> schema.GenerateReply:
    return await unary(channel, "Generate", schema.GenerateReply)(request_)


async def test_a_request_that_never_arrives_is_not_waited_for_without_end(
    make_api: ApiMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generation_calls, "BODY_SECONDS", 0.2)
    async with channel_to(make_api(make_api.says("x"))) as channel:
        silent = channel.stream_unary(schema.method("Generate"))()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await silent
        empty = channel.stream_unary(schema.method("Generate"))(iter(()))
        with pytest.raises(grpc.aio.AioRpcError) as missing:
            await empty
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert details_of(caught.value)["ErrorInfo"].reason == "request_timeout"
    assert details_of(missing.value)["ErrorInfo"].reason == "missing_required_parameter"
