"""What a server sends is bounded before the protocol's client reads it, and whoever waits is told."""

import json
from collections.abc import AsyncIterator, Sequence

import httpx
import pytest

from serving.orchestrator.tools.bounded_answers import TOO_LARGE, BoundedAnswers

CALL = {"jsonrpc": "2.0", "id": 7, "method": "tools/call"}


def client_of(chunks: Sequence[bytes], content_type: str, encoding: str = "identity") -> httpx.AsyncClient:
    async def body() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk

    headers = {"Content-Type": content_type, "Content-Encoding": encoding}

    def answer(request: httpx.Request) -> httpx.Response:
        assert request.headers["Accept-Encoding"] == "identity"
        return httpx.Response(200, headers=headers, content=body())

    return httpx.AsyncClient(transport=BoundedAnswers(httpx.MockTransport(answer), 40))


async def test_an_answer_that_is_too_large_becomes_an_error_of_the_call_that_waits_for_it() -> None:
    reply = await client_of([b"x" * 30, b"x" * 30], "application/json").post("http://srv/mcp", json=CALL)
    error = reply.json()
    assert (error["id"], error["error"]["code"]) == (7, TOO_LARGE)
    assert "more than the 40 bytes" in error["error"]["message"]
    reply = await client_of([b'{"a":', b"1}"], "application/json").post("http://srv/mcp", json=CALL)
    assert reply.json() == {"a": 1}


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
async def test_each_event_may_be_so_large_and_all_together_any_size(end: bytes) -> None:
    events = (b"data: " + b"x" * 20 + end) * 10
    bytewise = [events[i : i + 1] for i in range(len(events))]
    for chunks in ([events], bytewise):
        reply = await client_of(chunks, "text/event-stream").post("http://srv/mcp", json=CALL)
        assert reply.content == events


async def test_an_event_that_is_too_large_becomes_an_error_and_the_last() -> None:
    chunks = [b"data: ", b"{}\n", b"\ndata: ", b"x" * 20, b"x" * 20, b"\n\ndata: {}\n\n"]
    reply = await client_of(chunks, "text/event-stream; charset=utf-8").post("http://srv/mcp", json=CALL)
    first, last, rest = reply.text.split("\n\n")
    assert (first, rest) == ("data: {}", "")
    assert json.loads(last.split("data: ")[1])["error"]["code"] == TOO_LARGE


async def test_where_no_call_waits_the_stream_ends() -> None:
    with pytest.raises(httpx.ReadError, match="more than the 40 bytes"):
        await client_of([b"x" * 41], "text/event-stream").get("http://srv/mcp")


async def test_a_compressed_answer_is_refused() -> None:
    client = client_of([b"x"], "application/json", encoding="gzip")
    with pytest.raises(httpx.DecodingError, match="compressed"):
        await client.post("http://srv/mcp", json=CALL)
