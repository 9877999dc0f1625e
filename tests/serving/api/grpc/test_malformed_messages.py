"""Hundreds of messages that are wrong in one place: each is refused as the client's fault, and disturbs nobody."""

import random
from collections.abc import Callable

import grpc
import grpc.aio
import pytest

from serving.client import schema
from tests.serving.api.conftest import ApiMaker
from tests.serving.api.grpc.serving_grpc import channel_to, chat, details_of, streaming, unary
from tests.serving.api.grpc.test_generation_calls import gated

COUNT = 300
PATIENCE = 60.0  # seconds; only a message that was accepted takes them
THEIR_FAULT = {"INVALID_ARGUMENT", "OUT_OF_RANGE", "UNIMPLEMENTED", "NOT_FOUND"}
LARGE = [2**31 - 1, -(2**31), 10**6, -5]
BROKEN_JSON = ["{", "nul", "NaN", "[1,]", '{"a":1,"a":1}', '"\\ud800"', "9" * 5000, "[" * 5000, "1e999", '[{"b": {}}]']
NUMBERS = ["n", "top_k", "max_tokens", "min_tokens", "logprobs", "prompt_logprobs"]
FLOATS = ["temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"]
JSON = ["tools_json", "tool_choice_json", "response_format_json", "chat_template_kwargs_json"]


def malformed(draw: random.Random) -> tuple[str, bytes]:
    kinds: dict[str, Callable[[], bytes]] = {
        "random bytes": lambda: b"\xff" + draw.randbytes(draw.randint(1, 200)),
        "cut": lambda: valid()[: -draw.randint(1, 3)],
        "unknown field": lambda: valid() + bytes([0xF8, 0x3F, draw.randrange(128)]),
        "wrong wire type": lambda: valid() + b"\x0b",
        "invalid UTF-8": lambda: b"\x0a\x02\xff\xfe",
        "number": lambda: chat(
            **{draw.choice(NUMBERS): draw.choice(LARGE)}, stop_token_ids=[2**31]
        ).SerializeToString(),
        "not finite": lambda: chat(
            **{draw.choice(FLOATS): draw.choice([float("nan"), float("-inf")])}
        ).SerializeToString(),
        "enum": lambda: schema.GenerateRequest(
            messages={"messages": [{"role": draw.randint(6, 1000), "content": "x"}]}
        ).SerializeToString(),
        "json": lambda: chat(**{draw.choice(JSON): draw.choice(BROKEN_JSON)}).SerializeToString(),
        "no input": lambda: schema.GenerateRequest(temperature=draw.random()).SerializeToString(),
        "role without its fields": lambda: schema.GenerateRequest(
            messages={"messages": [{"role": 3, "content": "x", "tool_call_id": "c"}]}
        ).SerializeToString(),
        "very many": lambda: schema.GenerateRequest(
            messages={"messages": [{"role": 4, "tool_calls": [{}] * 70_000}]}
        ).SerializeToString(),
    }

    def valid() -> bytes:
        return chat("some text", cache_salt=f"salt {draw.randrange(10**6)}").SerializeToString()

    kind = draw.choice(list(kinds)[: -1 if draw.random() < 0.95 else None])
    return kind, kinds[kind]()


async def test_what_is_malformed_is_refused_as_such_and_a_running_stream_goes_on(make_api: ApiMaker) -> None:
    api, engine = gated(make_api, "hello")
    draw = random.Random("malformed messages")
    async with channel_to(api) as channel:
        running = streaming(channel)(chat())
        engine.let(1)
        text = (await running.read()).choices[0].text
        call = unary(channel, "Generate", schema.GenerateReply)
        for _ in range(COUNT):
            kind, data = malformed(draw)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(data, timeout=PATIENCE)
            details = details_of(caught.value)
            assert caught.value.code().name in THEIR_FAULT, (kind, caught.value)
            assert details["ErrorInfo"].metadata["param"], (kind, caught.value)
        assert len(engine.requests) == 1
        engine.let(10)
        while (chunk := await running.read()) is not grpc.aio.EOF:
            text += "".join(choice.text for choice in chunk.choices)
    assert text == "hello"
    assert api.service.slots.open == 0
