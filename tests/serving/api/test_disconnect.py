"""A client who leaves, over a real socket: the engine learns of it before it makes another token."""

import asyncio
import json
import logging
import socket

import pytest

from serving.api.service import StreamLimits
from tests.serving.api.conftest import WINDOW, Api, ApiMaker, Body, chat_body, text_body
from tests.serving.api.gated_engine import GatedEngine
from tests.serving.api.listening import listening

CHAT = "/v1/chat/completions"
PATIENCE = 180.0  # seconds; only a broken test waits that long


def _api(make_api: ApiMaker) -> tuple[Api, GatedEngine]:
    size = make_api.tokenizer.vocab_size
    engine = GatedEngine([make_api.says("x" * 1000)], vocab_size=size, max_model_len=WINDOW)
    return make_api(engine=engine), engine


async def _send(port: int, path: str, body: Body) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(_request(path, body))
    await writer.drain()
    return reader, writer


def _request(path: str, body: Body) -> bytes:
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    return head.encode() + b"content-length: %d\r\n\r\n" % len(content) + content


@pytest.mark.parametrize(
    ("path", "body", "streams"),
    [
        (CHAT, chat_body(stream=True), 1),
        (CHAT, chat_body(stream=False), 1),
        (CHAT, chat_body(stream=True, n=3), 3),
        ("/v1/completions", text_body(prompt=["a", "b"], max_tokens=50), 2),
        ("/v1/completions", text_body(prompt=["a", "b"], max_tokens=50, stream=True), 2),
    ],
)
async def test_leaving_aborts_every_stream_before_its_next_token(
    make_api: ApiMaker, path: str, body: Body, streams: int
) -> None:
    api, engine = _api(make_api)
    async with listening(api.app) as port:
        reader, writer = await _send(port, path, body)
        engine.let(2 * streams)
        if body.get("stream"):
            await reader.readuntil(b"data: ")
        else:
            await engine.started.wait()
        writer.transport.abort()
        while len(engine.closed) < streams:
            engine.ended.clear()
            await asyncio.wait_for(engine.ended.wait(), PATIENCE)
        emitted = engine.emitted
        engine.let(100)
        assert (await api.get("/health/ready")).status_code == 200
        assert engine.emitted == emitted <= 2 * streams
        assert engine.finished == []
    assert api.service.slots.open == 0


async def test_leaving_while_waiting_for_the_first_token_aborts(make_api: ApiMaker) -> None:
    api, engine = _api(make_api)
    async with listening(api.app) as port:
        _, writer = await _send(port, CHAT, chat_body(stream=True))
        await asyncio.wait_for(engine.started.wait(), PATIENCE)
        writer.transport.abort()
        await asyncio.wait_for(engine.ended.wait(), PATIENCE)
        assert engine.emitted == 0


async def test_the_log_says_what_was_generated_for_a_client_who_left(
    make_api: ApiMaker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="serving")
    api, engine = _api(make_api)
    async with asyncio.timeout(PATIENCE), listening(api.app) as port:
        reader, writer = await _send(port, CHAT, chat_body(stream=True))
        engine.let(3)
        for _ in range(4):  # the role, then a token each
            await reader.readuntil(b"data: ")
        writer.transport.abort()
        await engine.ended.wait()
    (line,) = [record.fields for record in caplog.records if record.message == "request"]  # type: ignore[attr-defined]
    assert (line["code"], line["completion_tokens"]) == ("client_disconnected", 3)


async def test_leaving_in_the_middle_of_the_body_starts_nothing(make_api: ApiMaker) -> None:
    api, engine = _api(make_api)
    async with listening(api.app) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: w\r\ncontent-type: application/json\r\n")
        writer.write(b'content-length: 100\r\n\r\n{"model"')
        await writer.drain()
        writer.transport.abort()
    assert engine.requests == []


async def test_a_server_that_stops_lets_an_open_stream_end(make_api: ApiMaker) -> None:
    api, engine = _api(make_api)
    async with listening(api.app) as port:
        reader, _ = await _send(port, CHAT, chat_body(stream=True, max_tokens=5))
        engine.let(2)
        await reader.readuntil(b"data: ")
        asyncio.get_running_loop().call_soon(engine.let, 10)
    rest = await reader.read()
    assert b"data: [DONE]" in rest


@pytest.mark.parametrize("stream", [True, False])
async def test_a_server_that_cannot_wait_longer_ends_each_request_with_an_error(
    make_api: ApiMaker, stream: bool
) -> None:
    api, engine = _api(make_api)
    async with listening(api.app, drain_seconds=0) as port:
        reader, _ = await _send(port, CHAT, chat_body(stream=stream))
        if stream:
            engine.let(1)
            await reader.readuntil(b"data: ")
        else:
            await engine.started.wait()
    rest = await reader.read()
    assert rest.count(b'"code":"server_stopping"') == 1
    assert b"[DONE]" not in rest
    assert len(engine.closed) == 1


async def test_a_client_who_does_not_read_is_cut_and_its_stream_aborted(make_api: ApiMaker) -> None:
    limits = StreamLimits(heartbeat_seconds=0.01, slow_reader_seconds=0.01, max_pending=8)
    size = make_api.tokenizer.vocab_size
    engine = GatedEngine([make_api.says("x" * 3900)], vocab_size=size, max_model_len=WINDOW)
    engine.let(3900)
    api = make_api(engine=engine, streams=limits)
    async with asyncio.timeout(PATIENCE), listening(api.app, send_buffer=16 << 10) as port:
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 10)
            # Twenty alternatives for each token make megabytes, more than the buffers between the two hold.
            client.sendall(_request(CHAT, chat_body(stream=True, logprobs=True, top_logprobs=20)))
            await engine.ended.wait()
            client.setblocking(False)
            received = b""
            while part := await asyncio.get_running_loop().sock_recv(client, 1 << 20):
                received += part
    assert engine.finished == []
    assert b"data: " in received
    assert b"[DONE]" not in received
    assert not received.endswith(b"0\r\n\r\n")
