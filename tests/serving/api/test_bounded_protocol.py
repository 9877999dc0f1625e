"""Headers that are too large, too slow or no HTTP at all, over a real socket."""

import asyncio
import json
import logging
import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from serving.api.accept_queue import AcceptQueue
from tests.serving.api.conftest import ApiMaker, chat_body
from tests.serving.api.listening import listening


async def _exchange(port: int, data: bytes) -> tuple[int, dict[str, str]]:
    """Sends, and reads until the server closes: the status and the error."""
    head, body = await _reply(port, data)
    return int(head.split()[1]), json.loads(body)["error"]


async def _reply(port: int, data: bytes) -> tuple[str, str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    reply = await asyncio.wait_for(reader.read(), 120)
    writer.close()
    head, _, body = reply.decode().partition("\r\n\r\n")
    return head, body


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nx: " + b"a" * 40_000,
        b"GET /" + b"a" * 40_000,
        b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 8_000,
        b"GET / HTTP/1.1\r\nx: " + b"a" * 40_000 + b"\r\n\r\n",
    ],
)
async def test_headers_beyond_the_limit_are_refused(make_api: ApiMaker, data: bytes) -> None:
    async with listening(make_api().app) as port:
        status, error = await _exchange(port, data)
    assert (status, error["code"]) == (431, "headers_too_large")


async def test_headers_that_never_end_are_cut_off(make_api: ApiMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.api.bounded_protocol.HEADER_SECONDS", 0.02)
    async with listening(make_api().app) as port:
        for data in (b"", b"GET / HTTP/1.1\r\nhost: "):
            status, error = await _exchange(port, data)
            assert (status, error["code"]) == (408, "request_timeout")


async def test_headers_in_pieces_and_several_requests_on_a_connection_are_read(make_api: ApiMaker) -> None:
    async with listening(make_api().app) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(3):
            for piece in (b"GET /health/li", b"ve HTTP/1.1\r\nho", b"st: localhost\r\n\r\n"):
                writer.write(piece)
                await writer.drain()
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            await reader.readuntil(b'{"status":"live"}')
        writer.close()


async def test_a_refusal_has_an_id_a_log_line_and_a_count(
    make_api: ApiMaker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serving.api.bounded_protocol.HEADER_SECONDS", 0.02)
    caplog.set_level(logging.INFO, logger="serving")
    api = make_api()
    async with listening(api.app) as port:
        heads = [(await _reply(port, data))[0] for data in (b"SECRET\r\n\r\n", b"", b"GET /SECRET" + b"a" * 40_000)]
    ids = [found[1] for head in heads if (found := re.search(r"x-request-id: ([0-9a-f]{32})\r\n", head))]
    assert len(set(ids)) == 3
    logged = [record.fields for record in caplog.records if record.name == "serving.api.bounded_protocol"]  # type: ignore[attr-defined]
    assert logged == [
        {"request_id": ids[0], "status": 400, "code": "bad_request"},
        {"request_id": ids[1], "status": 408, "code": "request_timeout"},
        {"request_id": ids[2], "status": 431, "code": "headers_too_large"},
    ]
    assert "SECRET" not in caplog.text
    counted = {
        sample.labels["reason"]: sample.value
        for family in text_string_to_metric_families((await api.get("/metrics")).text)
        for sample in family.samples
        if sample.name == "weft_requests_refused_total"
    }
    assert counted == {"bad_request": 1, "request_timeout": 1, "headers_too_large": 1}


@pytest.mark.parametrize("data", [b"\x16\x03\x01\x02\x00\x01\x00", b"HELLO\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"])
async def test_what_is_not_http_is_refused_in_the_error_shape(make_api: ApiMaker, data: bytes) -> None:
    async with listening(make_api().app) as port:
        status, error = await _exchange(port, data)
    assert (status, error["code"]) == (400, "bad_request")


async def test_where_too_many_connections_wait_work_is_refused_and_probes_are_answered(
    make_api: ApiMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = make_api(make_api.says("x"))
    body = json.dumps(chat_body()).encode()
    last = b"host: localhost\r\nconnection: close\r\n"
    asked = b"POST /v1/chat/completions HTTP/1.1\r\ncontent-type: application/json\r\n" + last
    asked += b"content-length: %d\r\n\r\n" % len(body) + body
    async with listening(api.app) as port:
        with monkeypatch.context() as patch:
            patch.setattr(AcceptQueue, "refuses", lambda _: True)
            head, told = await _reply(port, asked)
            assert (int(head.split()[1]), json.loads(told)["error"]["code"]) == (503, "overloaded")
            assert "retry-after: 5" in head
            _, told = await _reply(port, asked.replace(b"/v1/chat/completions", b"/v1/messages?beta=true"))
            theirs = json.loads(told)  # as Anthropic's clients read it
            assert (theirs["type"], theirs["error"]["type"]) == ("error", "overloaded_error")
            head, told = await _reply(port, b"GET /health/live HTTP/1.1\r\n" + last + b"\r\n")
            assert (int(head.split()[1]), told) == (200, '{"status":"live"}')
        assert int((await _reply(port, asked))[0].split()[1]) == 200
    assert len(api.engine.requests) == 1
