"""One request's spans through the whole API, over a scripted engine."""

import json
import logging
from collections.abc import Mapping

import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from websockets.asyncio.client import connect

from serving.access import AccessConfig
from serving.client import schema
from serving.gateway.gateway import Gateway
from serving.gateway.identity import Identity
from serving.observability.logs import JsonFormatter
from serving.observability.otel import OtelTracing
from tests.fakes.engine import Script
from tests.serving.api.conftest import MODEL, ApiMaker, chat_body, text_body
from tests.serving.api.grpc.serving_grpc import channel_to, chat, unary
from tests.serving.api.listening import listening

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
SECRET = "xyzzy"
PATIENCE = 180.0  # seconds; only a broken test waits that long
ENGINE = ("engine queue", "prefill", "decode")


class Traced:
    """An API whose spans are kept."""

    def __init__(
        self, make_api: ApiMaker, *scripts: Script, sample: float = 1.0, gateway: Gateway | None = None
    ) -> None:
        self.exporter = InMemorySpanExporter()
        tracing = OtelTracing(SimpleSpanProcessor(self.exporter), sample)
        self.api = make_api(*scripts, tracing=tracing, gateway=gateway)

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self.exporter.get_finished_spans())

    def one(self, name: str) -> ReadableSpan:
        (span,) = [span for span in self.spans if span.name == name]
        return span

    def parent_of(self, name: str) -> str | None:
        parent = self.one(name).parent
        return None if parent is None else next((s.name for s in self.spans if s.context == parent), "elsewhere")


def facts(span: ReadableSpan) -> Mapping[str, object]:
    return dict(span.attributes or {})


def times(span: ReadableSpan) -> tuple[int, int]:
    assert span.start_time is not None
    assert span.end_time is not None
    return span.start_time, span.end_time


@pytest.mark.parametrize("stream", [False, True])
async def test_a_chat_request_is_one_trace_from_the_door_to_the_last_token(make_api: ApiMaker, stream: bool) -> None:
    traced = Traced(make_api, make_api.says("hello", cached_tokens=2))
    await traced.api.post(CHAT, chat_body(stream=stream, temperature=0.5, max_tokens=9), headers=PARENT)
    door, chat = f"POST {CHAT}", f"chat {MODEL}"
    assert {span.name: traced.parent_of(span.name) for span in traced.spans} == {
        door: "elsewhere",
        chat: door,
        "prepare": chat,
        "render": "prepare",
        "encode": "prepare",
        "admission": chat,
        **dict.fromkeys(ENGINE, chat),
        "reply": door,
    }
    assert {f"{span.context.trace_id:032x}" for span in traced.spans if span.context} == {TRACE}
    order = [times(traced.one(name)) for name in ("render", "encode", "admission", *ENGINE)]
    assert order == sorted(order)
    assert times(traced.one("engine queue"))[1] == times(traced.one("prefill"))[0]
    assert times(traced.one("prefill"))[1] == times(traced.one("decode"))[0]


async def test_attributes_have_the_names_of_the_conventions(make_api: ApiMaker) -> None:
    traced = Traced(make_api, make_api.says("hello", cached_tokens=2))
    reply = await traced.api.post(CHAT, chat_body(temperature=0.5, max_tokens=9))
    usage, request_id = reply.json()["usage"], reply.headers["x-request-id"]
    chat = dict(facts(traced.one(f"chat {MODEL}")))
    assert chat.pop("gen_ai.response.time_to_first_chunk")
    assert chat == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "weft",
        "gen_ai.request.model": MODEL,
        "gen_ai.request.stream": False,
        "gen_ai.request.choice.count": 1,
        "gen_ai.request.max_tokens": 9,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.usage.input_tokens": usage["prompt_tokens"],
        "gen_ai.usage.output_tokens": usage["completion_tokens"],
        "gen_ai.usage.cache_read.input_tokens": 2,
        "gen_ai.response.finish_reasons": ("stop",),
        "weft.request_id": request_id,
    }
    assert facts(traced.one(f"POST {CHAT}")) == {
        "http.request.method": "POST",
        "http.route": CHAT,
        "http.response.status_code": 200,
        "weft.request_id": request_id,
    }
    assert facts(traced.one("decode"))["gen_ai.usage.output_tokens"] == 6


async def test_each_choice_of_each_prompt_has_its_own_engine_spans(make_api: ApiMaker) -> None:
    traced = Traced(make_api, make_api.says("ab"))
    await traced.api.post(COMPLETIONS, text_body(prompt=["one", "two"], n=2))
    decoded = [facts(span) for span in traced.spans if span.name == "decode"]
    assert {(f["weft.prompt"], f["weft.choice"]) for f in decoded} == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert facts(traced.one(f"text_completion {MODEL}"))["gen_ai.usage.output_tokens"] == 12


async def test_a_request_of_very_many_choices_makes_few_spans(make_api: ApiMaker) -> None:
    traced = Traced(make_api, make_api.says("a"))
    await traced.api.post(COMPLETIONS, text_body(prompt=["p"] * 40, n=2))
    assert len([span for span in traced.spans if span.name == "decode"]) == 16
    assert facts(traced.one(f"text_completion {MODEL}"))["gen_ai.usage.output_tokens"] == 160


async def test_no_span_has_a_users_text(make_api: ApiMaker) -> None:
    traced = Traced(make_api, make_api.says(SECRET), Script(token_ids=[], raises=KeyError(SECRET)))
    body = chat_body(messages=[{"role": "user", "content": SECRET}], stop=[SECRET], user=SECRET)
    for _ in range(2):
        await traced.api.post(CHAT, body, headers={"x-request-id": SECRET, "tracestate": f"a={SECRET}"})
    await traced.api.post(CHAT, chat_body(temperature=SECRET))
    await traced.api.post(CHAT, chat_body(chat_template_kwargs={SECRET: SECRET}, **{SECRET: SECRET}))
    await traced.api.get(f"/v1/models/{SECRET}?{SECRET}={SECRET}")
    assert len([span for span in traced.spans if span.parent is None]) == 5
    assert not [span.to_json() for span in traced.spans if SECRET in span.to_json()]


async def test_a_failure_is_told_by_its_code(make_api: ApiMaker) -> None:
    traced = Traced(make_api, Script(token_ids=[], raises=KeyError("x")))
    await traced.api.post(CHAT, chat_body())
    door = traced.one(f"POST {CHAT}")
    assert facts(door)["error.type"] == "internal_error"
    assert facts(door)["http.response.status_code"] == 500
    assert not door.status.is_ok
    assert facts(traced.one(f"chat {MODEL}"))["error.type"] == "KeyError"


async def test_the_log_names_the_trace_of_a_request_sampled_or_not(
    make_api: ApiMaker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="serving")
    for flag in ("01", "00"):
        traced = Traced(make_api, make_api.says("x"))
        await traced.api.post(CHAT, chat_body(), headers={"traceparent": PARENT["traceparent"][:-2] + flag})
        assert bool(traced.spans) is (flag == "01")
    lines = [json.loads(JsonFormatter().format(record)) for record in caplog.records if record.message == "request"]
    assert [line["trace_id"] for line in lines] == [TRACE, TRACE]


async def test_only_the_api_is_traced_and_only_for_those_who_may_use_it(make_api: ApiMaker) -> None:
    access = AccessConfig()
    traced = Traced(make_api, gateway=Gateway(access, identity=Identity(access, api_key="k" * 40)))
    headers = {"authorization": "Bearer " + "k" * 40, **PARENT}
    async with traced.api.client() as client:
        for path in ("/", "/health/live", "/v1/models"):
            await client.get(path, headers=PARENT)
        assert traced.spans == []
        for path in ("/", "/health/live"):
            await client.get(path, headers=headers)
        assert traced.spans == []
        await client.get("/v1/models", headers=headers)
    assert [span.name for span in traced.spans] == ["GET /v1/models", "reply"][::-1]


async def test_a_client_that_leaves_ends_its_spans(make_api: ApiMaker) -> None:
    traced = Traced(make_api, make_api.says("hello", hold_after=2))
    async with (
        listening(traced.api.app) as port,
        httpx.AsyncClient(timeout=PATIENCE) as client,
        client.stream("POST", f"http://127.0.0.1:{port}{CHAT}", json=chat_body(stream=True)) as reply,
    ):
        async for line in reply.aiter_lines():
            if '"content":"e"' in line:
                break
    assert facts(traced.one(f"POST {CHAT}"))["error.type"] == "client_disconnected"
    assert {"decode", "prefill", "engine queue"} <= {span.name for span in traced.spans}
    chat = traced.one(f"chat {MODEL}")
    assert facts(chat)["gen_ai.response.finish_reasons"] == ()
    assert chat.status.is_ok


async def test_each_message_of_a_socket_is_a_request_of_its_own(make_api: ApiMaker) -> None:
    traced = Traced(make_api, make_api.says("x"))
    async with (
        listening(traced.api.app) as port,
        connect(f"ws://127.0.0.1:{port}/v1/socket", compression=None, additional_headers=PARENT) as socket,
    ):
        for name in ("a", "b"):
            await socket.send(json.dumps({"type": "chat.completions", "id": name, "body": chat_body()}))
            while json.loads(await socket.recv())["type"] != "done":
                pass
    assert [span.name for span in traced.spans].count("/v1/socket chat.completions") == 2
    assert {f"{span.context.trace_id:032x}" for span in traced.spans if span.context} == {TRACE}


async def test_a_grpc_call_goes_on_with_the_trace_in_its_metadata(make_api: ApiMaker) -> None:
    traced = Traced(make_api, make_api.says("hello"))
    async with channel_to(traced.api) as channel:
        await unary(channel, "Generate", schema.GenerateReply)(chat(), metadata=tuple(PARENT.items()))
    door = traced.one("Generate")
    assert facts(door)["rpc.system"] == "grpc"
    assert traced.parent_of(f"chat {MODEL}") == "Generate"
    assert {f"{span.context.trace_id:032x}" for span in traced.spans if span.context} == {TRACE}
