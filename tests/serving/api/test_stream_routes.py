"""Durable streams over HTTP, in one process: who leaves may come back, and misses nothing."""

import asyncio
import json
import re
from dataclasses import replace

import httpx
import pytest

from serving.gateway.principal import anonymous
from serving.sessions.durable_generations import DurablePolicy
from serving.sessions.generation_log import LogLimits
from serving.sessions.generation_log_memory import MemoryGenerationLog
from tests.serving.api.conftest import WINDOW, Api, ApiMaker, Body, chat_body, data_of, text_body, text_of
from tests.serving.api.gated_engine import GatedEngine

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
PATIENCE = 180.0  # seconds; only a broken test waits that long
POEM = "The weft crosses, é, the warp stays; STOP here"


def _gated(make_api: ApiMaker, text: str = POEM) -> tuple[Api, GatedEngine]:
    size = make_api.tokenizer.vocab_size
    engine = GatedEngine([make_api.says(text)], vocab_size=size, max_model_len=WINDOW)
    return make_api(engine=engine), engine


async def _start(api: Api, path: str, body: Body) -> tuple[str, str]:
    """The whole text of the stream, and its id."""
    reply = await api.post(path, {**body, "stream": True, "durable": True})
    assert reply.status_code == 200, reply.text
    return reply.text, reply.headers["x-weft-stream-id"]


async def _read(api: Api, stream_id: str, after: int | str = 0) -> httpx.Response:
    async with api.client() as client:
        return await client.get(f"/v1/streams/{stream_id}", headers={"Last-Event-ID": str(after)})


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, chat_body()),
        (CHAT, chat_body(n=3, stop="STOP", logprobs=True, stream_options={"include_usage": True})),
        (TEXT, text_body(max_tokens=30, return_token_ids=True)),
        (TEXT, text_body(prompt=["a", "b"], n=2, max_tokens=9, stream_options={"continuous_usage_stats": True})),
    ],
)
async def test_reading_again_gives_the_same_bytes_from_any_event_on(make_api: ApiMaker, path: str, body: Body) -> None:
    api = make_api(make_api.says(POEM))
    first, stream_id = await _start(api, path, body)
    frames = first.split("\n\n")
    assert frames[-2:] == ["data: [DONE]", ""]
    count = len(frames) - 2
    assert [re.match(r"id: (\S+)", frame)[1] for frame in frames[:-2]] == [  # type: ignore[index]
        f"{stream_id}:{number}" for number in range(1, count + 1)
    ]
    for after in (0, 1, count // 2, count):
        assert (await _read(api, stream_id, f"{stream_id}:{after}")).text == "\n\n".join(frames[after:])
    assert (await _read(api, stream_id, "1")).text == "\n\n".join(frames[1:])
    assert (await api.get(f"/v1/streams/{stream_id}?after=1")).text == "\n\n".join(frames[1:])


async def test_a_durable_stream_says_what_any_other_says(make_api: ApiMaker) -> None:
    api = make_api(make_api.says(POEM))
    plain = await api.events(CHAT, chat_body(seed=1))
    durable, _ = await _start(api, CHAT, chat_body(seed=1))
    frames = [json.loads(data_of(frame)) for frame in durable.split("\n\n")[:-2]]
    assert [frame["choices"] for frame in frames] == [chunk["choices"] for chunk in plain]


@pytest.mark.parametrize(
    "body",
    [
        chat_body(seed=1, logprobs=True, stream_options={"continuous_usage_stats": True}),
        chat_body(seed=1, stop="STOP", return_token_ids=True, stream_options={"include_usage": True}),
        chat_body(seed=1, max_tokens=9, n=1),
    ],
)
async def test_events_are_cut_the_same_however_many_tokens_came_in_a_step(make_api: ApiMaker, body: Body) -> None:
    told = []
    for chunk in (1, 2, 5):
        durable, _ = await _start(make_api(make_api.says(POEM, chunk=chunk)), CHAT, body)
        frames = [json.loads(data_of(frame)) for frame in durable.split("\n\n")[:-2]]
        told.append([(frame["choices"], frame.get("usage")) for frame in frames])
    assert told[0] == told[1] == told[2]


async def test_calls_of_tools_have_the_same_ids_for_every_reader(make_api: ApiMaker) -> None:
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    api = make_api(make_api.says(call + call))
    tools = [{"type": "function", "function": {"name": "f"}}]
    first, stream_id = await _start(api, CHAT, chat_body(tools=tools))
    again = (await _read(api, stream_id)).text
    ids = re.findall(r'"id":"(call_\w+)"', first)
    assert len(set(ids)) == 2
    assert again == first


async def test_who_leaves_comes_back_to_a_stream_that_went_on(make_api: ApiMaker) -> None:
    api, engine = _gated(make_api)
    async with asyncio.timeout(PATIENCE):
        request = api.client().build_request("POST", CHAT, json=chat_body(stream=True, durable=True))
        seen = await _leave_after(api, request, engine, events=3)
        engine.let(1000)
        rest = await _read(api, seen[-1].split(":")[0], seen[-1])
        assert engine.closed == []
    frames = rest.text.split("\n\n")
    assert frames[0].startswith(f"id: {seen[-1].split(':')[0]}:{int(seen[-1].split(':')[1]) + 1}\n")
    assert frames[-2] == "data: [DONE]"


async def _leave_after(api: Api, request: httpx.Request, engine: GatedEngine, events: int) -> list[str]:
    """Reads so many events over a connection of the test's own, and leaves. Their ids."""
    ids: list[str] = []
    left = asyncio.Event()
    sent = iter([{"type": "http.request", "body": request.content, "more_body": False}])

    async def receive() -> dict[str, object]:
        message = next(sent, None)
        if message is None:
            await left.wait()
            return {"type": "http.disconnect"}
        return message

    async def send(message: dict[str, object]) -> None:
        body = message.get("body", b"")
        assert isinstance(body, bytes)
        ids.extend(found.decode() for found in re.findall(rb"id: (\S+)\n", body))
        if len(ids) >= events:
            left.set()

    engine.let(events)
    scope = {
        "type": "http",
        "method": request.method,
        "path": request.url.path,
        "query_string": b"",
        "headers": [(name.lower(), value) for name, value in request.headers.raw],
        "http_version": "1.1",
        "server": ("localhost", 80),
        "scheme": "http",
    }
    await api.app(scope, receive, send)  # type: ignore[arg-type]
    return ids


async def test_several_readers_follow_one_generation(make_api: ApiMaker) -> None:
    api, engine = _gated(make_api)
    async with asyncio.timeout(PATIENCE):
        starting = asyncio.ensure_future(_start(api, CHAT, chat_body()))
        await engine.started.wait()
        (stream_id,) = api.service.durable.running
        readers = [asyncio.ensure_future(_read(api, stream_id)) for _ in range(3)]
        engine.let(1000)
        first, _ = await starting
        assert [reply.text for reply in await asyncio.gather(*readers)] == [first] * 3
    assert len(engine.requests) == 1


@pytest.mark.parametrize(("method", "path"), [("DELETE", ""), ("POST", "/cancel")])
async def test_a_cancel_ends_it_for_every_reader_with_one_event(make_api: ApiMaker, method: str, path: str) -> None:
    api, engine = _gated(make_api)
    async with asyncio.timeout(PATIENCE):
        starting = asyncio.ensure_future(_start(api, CHAT, chat_body()))
        await engine.started.wait()
        (stream_id,) = api.service.durable.running
        engine.let(2)
        while engine.emitted < 2:
            await asyncio.sleep(0)
        async with api.client() as client:
            reply = await client.request(method, f"/v1/streams/{stream_id}{path}")
        assert reply.json() == {"id": stream_id, "object": "stream", "cancelled": True}
        text, _ = await starting
        await engine.ended.wait()
    assert engine.closed
    assert json.loads(data_of(text.split("\n\n")[-2]))["error"]["code"] == "stream_cancelled"
    assert "[DONE]" not in text
    assert (await _read(api, stream_id)).text == text
    async with api.client() as client:
        reply = await client.request(method, f"/v1/streams/{stream_id}{path}")
    assert reply.json() == {"id": stream_id, "object": "stream", "cancelled": False}, "it had ended"
    assert api.service.slots.open == 0


async def test_a_request_that_is_refused_has_its_status_and_leaves_no_stream(make_api: ApiMaker) -> None:
    api = make_api(make_api.says("x"))
    reply = await api.post(CHAT, chat_body(stream=True, durable=True, max_tokens=WINDOW * 2))
    assert reply.status_code == 400
    assert "x-weft-stream-id" not in reply.headers
    assert api.service.durable.running == ()
    assert api.service.slots.open == 0


async def test_durable_needs_a_stream(make_api: ApiMaker) -> None:
    reply = await make_api(make_api.says("x")).post(CHAT, chat_body(durable=True))
    assert reply.json()["error"]["param"] == "durable"


@pytest.mark.parametrize("after", ["-1", "x", "other:1", "1" * 13, "²"])
async def test_a_position_that_is_none_is_refused(make_api: ApiMaker, after: str) -> None:
    api = make_api(make_api.says("x"))
    _, stream_id = await _start(api, CHAT, chat_body())
    async with api.client() as client:
        reply = await client.get(f"/v1/streams/{stream_id}", params={"after": after})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "after"


async def test_a_stream_nobody_knows_and_one_of_another_are_not_told_apart(make_api: ApiMaker) -> None:
    api = make_api(make_api.says("x"))
    _, stream_id = await _start(api, CHAT, chat_body())
    unknown = await _read(api, "nothing")

    async def authenticate(_: object) -> object:
        return replace(anonymous(), key_id="another")

    api.service.gateway.authenticate = authenticate  # type: ignore[method-assign]
    foreign = await _read(api, stream_id)
    assert unknown.status_code == foreign.status_code == 404
    assert unknown.json() == foreign.json()


async def test_a_log_that_is_full_lets_streams_go_on_and_says_so(make_api: ApiMaker) -> None:
    api = make_api(make_api.says(POEM), log=MemoryGenerationLog(LogLimits(max_bytes=10)))
    text, _ = await _start(api, CHAT, chat_body())
    notice, rest = text.split("\n", 1)
    assert notice == ": not durable: log_full"
    assert text_of([json.loads(data_of(frame)) for frame in rest.split("\n\n")[:-2]]) == POEM


async def test_a_log_that_is_full_refuses_where_that_is_the_policy(make_api: ApiMaker) -> None:
    api = make_api(
        make_api.says(POEM),
        log=MemoryGenerationLog(LogLimits(max_bytes=10)),
        policy=DurablePolicy(refuse_without_log=True),
    )
    reply = await api.post(CHAT, chat_body(stream=True, durable=True))
    assert reply.status_code == 503
    assert reply.json()["error"]["code"] == "log_full"
    assert int(reply.headers["retry-after"]) >= 1
    assert api.service.slots.open == 0
