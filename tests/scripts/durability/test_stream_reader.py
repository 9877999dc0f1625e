"""What the client of a durable stream keeps book of, over the server's own streams of events."""

import asyncio
from collections.abc import AsyncGenerator

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route

from scripts.durability.stream_reader import read_through
from serving.api.service import StreamLimits
from serving.api.sse import HEARTBEAT, EventStream, StreamPosition, frame

TEXTS = ("warp", "weft")


class OneStream:
    """The same stream at each request; at the first one a silence stands before its events, and a log that fails."""

    def __init__(self) -> None:
        self.requests = 0
        self._heard = asyncio.Event()

    async def answer(self, request: Request) -> EventStream:
        self.requests += 1
        if self.requests > 1:
            return EventStream(self._events(), StreamLimits(), lambda _: None, StreamPosition(stream_id="s"))
        position = StreamPosition(stream_id="s", notice=lambda: "log_full")
        limits = StreamLimits(heartbeat_seconds=0.01)
        return EventStream(self._after_silence(), limits, lambda _: None, position, self._heartbeat)

    def _heartbeat(self) -> bytes:
        self._heard.set()
        return HEARTBEAT

    async def _after_silence(self) -> AsyncGenerator[bytes, None]:
        await self._heard.wait()
        async for event in self._events():
            yield event

    async def _events(self) -> AsyncGenerator[bytes, None]:
        for text in TEXTS:
            yield frame(b'{"choices": [{"index": 0, "text": "%b", "token_ids": [1]}]}' % text.encode())


async def test_comments_of_one_connection_are_no_part_of_the_stream() -> None:
    stream = OneStream()
    app = Starlette(routes=[Route("/v1/completions", stream.answer, methods=["POST"])])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://weft") as http:
        first = await read_through(http, "/v1/completions", {})
        again = await read_through(http, "/v1/completions", {})
        told = await http.post("/v1/completions", json={})
    assert first.ended
    assert again.ended
    assert stream.requests == 3
    assert first.ids == [1, 2]
    assert first.token_ids == [1, 1]
    assert first.events == again.events
    assert "\n\n".join([*first.events, "data: [DONE]", ""]) == told.text
