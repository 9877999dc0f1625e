"""A client of a durable stream that comes back until it has the end, and keeps book of what it got."""

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any

import httpx

WAIT_SECONDS = 0.1  # before it comes back
MOVING = ("stream_moved", "server_stopping")


@dataclass(slots=True)
class Received:
    """One stream as its client saw it."""

    stream_id: str = ""
    events: list[str] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    at: list[float] = field(default_factory=list)  # when each event came, by the monotonic clock
    connections: int = 0
    ended: bool = False
    failure: str | None = None

    @property
    def repeated(self) -> int:
        return len(self.ids) - len(set(self.ids))

    @property
    def missing(self) -> int:
        return (max(self.ids) if self.ids else 0) - len(set(self.ids))

    def pause_after(self, moment: float) -> float:
        """The longest time without an event that ends after `moment`."""
        pairs = zip([moment, *self.at], self.at, strict=False)
        return max((later - max(before, moment) for before, later in pairs if later > moment), default=0.0)


async def read_through(
    http: httpx.AsyncClient, path: str, body: dict[str, Any], *, patience: float = 300.0
) -> Received:
    """Begins the stream, and reads it to its end over as many connections as that takes."""
    got = Received()
    deadline = time.monotonic() + patience
    while not got.ended and got.failure is None:
        if time.monotonic() > deadline:
            got.failure = "out of patience"
            break
        try:
            await read_once(http, path, body, got)
        except httpx.TransportError:
            await asyncio.sleep(WAIT_SECONDS)
    return got


async def read_once(
    http: httpx.AsyncClient, path: str, body: dict[str, Any], got: Received, *, most: int | None = None
) -> None:
    """One connection: to the end of the stream, or until `most` events have come over it. Raises TransportError."""
    if got.stream_id:
        headers = {"last-event-id": str(max(got.ids, default=0))}
        request = http.build_request("GET", f"/v1/streams/{got.stream_id}", headers=headers)
    else:
        request = http.build_request("POST", path, json={**body, "stream": True, "durable": True})
    response = await http.send(request, stream=True)
    try:
        if response.status_code != 200:
            await response.aread()
            if response.status_code in (502, 503, 504):
                await asyncio.sleep(WAIT_SECONDS)
            else:
                got.failure = f"{response.status_code} {response.text}"
            return
        got.connections += 1
        got.stream_id = response.headers["x-weft-stream-id"]
        count, text = 0, ""
        async for piece in response.aiter_text():
            *events, text = (text + piece).split("\n\n")
            for event in events:
                _take(got, event)
                count += 1
                if got.ended or got.failure is not None or (most is not None and count >= most):
                    return
    finally:
        await response.aclose()


def _take(got: Received, event: str) -> None:
    """Comments stand before the event that follows them, and are those of one connection: no other reader has them."""
    lines = [line for line in event.split("\n") if not line.startswith(":")]
    data = "".join(line.removeprefix("data: ") for line in lines if line.startswith("data: "))
    if not data:
        return
    if data == "[DONE]":
        got.ended = True
        return
    chunk = json.loads(data)
    if "error" in chunk:
        if chunk["error"]["code"] not in MOVING:
            got.failure = chunk["error"]["code"]
        return
    (name,) = [line.removeprefix("id: ") for line in lines if line.startswith("id: ")]
    got.events.append("\n".join(lines))
    got.ids.append(int(name.rsplit(":", 1)[1]))
    got.at.append(time.monotonic())
    for choice in chunk["choices"]:
        got.token_ids += choice.get("token_ids") or []
