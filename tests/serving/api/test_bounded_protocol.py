"""Headers that are too large, too slow or no HTTP at all, over a real socket."""

import asyncio
import json

import pytest

from tests.serving.api.conftest import ApiMaker
from tests.serving.api.listening import listening


async def _exchange(port: int, data: bytes) -> tuple[int, dict[str, str]]:
    """Sends, and reads until the server closes: the status and the error."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    reply = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    head, _, body = reply.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]


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
            for piece in (b"GET /health/li", b"ve HTTP/1.1\r\nho", b"st: weft\r\n\r\n"):
                writer.write(piece)
                await writer.drain()
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            await reader.readuntil(b'{"status":"live"}')
        writer.close()


@pytest.mark.parametrize("data", [b"\x16\x03\x01\x02\x00\x01\x00", b"HELLO\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"])
async def test_what_is_not_http_is_refused_in_the_error_shape(make_api: ApiMaker, data: bytes) -> None:
    async with listening(make_api().app) as port:
        status, error = await _exchange(port, data)
    assert (status, error["code"]) == (400, "bad_request")
