import asyncio
import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import pytest
from openai._streaming import SSEDecoder
from starlette.types import Message

from serving.api.service import StreamLimits
from serving.api.sse import ABORT_EXTENSION, DONE, HEARTBEAT, EventStream, StreamPosition, frame
from serving.errors import EngineUnavailableError, OverloadedError
from tests.serving.api.virtual_time import run_in_virtual_time

ID = re.compile(rb"id: (\S+)\n")
LIMITS = StreamLimits(heartbeat_seconds=15, slow_reader_seconds=30, max_pending=4)


class Connection:
    """The client's end: what was sent, when, and a reader who may stop reading or leave. `ids` are those of the events,
    which `writes` leaves out."""

    def __init__(self, position: StreamPosition | None = None) -> None:
        self.position = position
        self.headers: dict[bytes, bytes] = {}
        self.ids: list[str] = []
        self.writes: list[tuple[float, bytes]] = []
        self.status: int | None = None
        self.started_at: float | None = None
        self.ended = False
        self.aborted = False
        self.reading = asyncio.Event()
        self.reading.set()
        self.left = asyncio.Event()
        self.breaks: list[str] = []

    @property
    def bodies(self) -> list[bytes]:
        return [body for _, body in self.writes]

    async def receive(self) -> Message:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        await self.reading.wait()
        if message["type"] == "http.response.start":
            self.status, self.started_at = message["status"], asyncio.get_running_loop().time()
            self.headers = dict(message["headers"])
            return
        self.ids += [found.decode() for found in ID.findall(message["body"])]
        self.writes.append((asyncio.get_running_loop().time(), ID.sub(b"", message["body"])))
        self.ended = not message["more_body"]

    def abort(self) -> None:
        self.aborted = True
        self.left.set()

    async def stream(self, events: AsyncGenerator[bytes, None], limits: StreamLimits = LIMITS) -> None:
        scope: dict[str, Any] = {"type": "http", "extensions": {ABORT_EXTENSION: self.abort}}
        await EventStream(events, limits, self.breaks.append, self.position)(scope, self.receive, self.send)


class Events:
    """A generator of events that says when it was closed."""

    def __init__(self, *steps: bytes | float | Exception) -> None:
        self.steps = steps
        self.given = 0
        self.closed_at: float | None = None

    async def __call__(self) -> AsyncGenerator[bytes, None]:
        try:
            for step in self.steps:
                if isinstance(step, Exception):
                    raise step
                if isinstance(step, bytes):
                    self.given += 1
                    yield step
                else:
                    await asyncio.sleep(step)
        finally:
            self.closed_at = asyncio.get_running_loop().time()


def _virtual(test: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        await test()

    run_in_virtual_time(run())


def test_events_that_are_ready_together_leave_in_one_write() -> None:
    async def test() -> None:
        client = Connection()
        await client.stream(Events(b"a", b"b", 1.0, b"c", 1.0)())
        assert client.writes == [(0.0, b"ab"), (1.0, b"c"), (2.0, DONE)]
        assert client.ended

    _virtual(test)


def test_a_silence_is_filled_with_comments() -> None:
    async def test() -> None:
        client = Connection()
        await client.stream(Events(b"a", 40.0, b"b", 10.0, b"c", 16.0)())
        assert client.writes == [
            (0.0, b"a"),
            (15.0, HEARTBEAT),
            (30.0, HEARTBEAT),
            (40.0, b"b"),
            (50.0, b"c"),
            (65.0, HEARTBEAT),
            (66.0, DONE),
        ]

    _virtual(test)


def test_a_stream_that_is_slow_to_begin_sends_its_headers_and_then_comments() -> None:
    async def test() -> None:
        client = Connection()
        await client.stream(Events(32.0, b"a")())
        assert client.started_at == 15.0
        assert client.writes == [(30.0, HEARTBEAT), (32.0, b"a" + DONE)]

    _virtual(test)


def test_what_fails_before_the_first_event_is_raised_and_nothing_is_sent() -> None:
    async def test() -> None:
        client = Connection()
        with pytest.raises(OverloadedError):
            await client.stream(Events(1.0, OverloadedError("full", retry_after=2))())
        assert client.status is None
        assert client.breaks == []

    _virtual(test)


def test_what_fails_later_ends_the_stream_with_one_error_event_and_no_done() -> None:
    async def test() -> None:
        client = Connection()
        await client.stream(Events(b"a", 1.0, EngineUnavailableError("lost", code="engine_lost"))())
        error = {"error": {"message": "lost", "type": "overloaded_error", "param": None, "code": "engine_lost"}}
        assert client.bodies[0] == b"a"
        assert json.loads(client.bodies[1].removeprefix(b"data: ")) == error
        assert len(client.bodies) == 2
        assert client.ended
        assert client.breaks == ["engine_lost"]

    _virtual(test)


def test_an_unexpected_failure_ends_the_stream_without_telling_its_text() -> None:
    async def test() -> None:
        client = Connection()
        await client.stream(Events(b"a", 1.0, ValueError("a secret"))())
        assert b"internal_error" in client.bodies[-1]
        assert b"secret" not in client.bodies[-1]
        assert client.ended

    _virtual(test)


def test_a_client_who_leaves_closes_the_generator() -> None:
    async def test() -> None:
        client = Connection()
        events = Events(b"a", 1000.0, b"b")
        asyncio.get_running_loop().call_later(7.0, client.left.set)
        await client.stream(events())
        assert events.closed_at == 7.0
        assert client.bodies == [b"a"]
        assert client.breaks == ["client_disconnected"]
        assert not client.ended

    _virtual(test)


def test_a_client_who_leaves_before_the_first_event_closes_the_generator() -> None:
    async def test() -> None:
        client = Connection()
        events = Events(1000.0, b"b")
        asyncio.get_running_loop().call_later(3.0, client.left.set)
        await client.stream(events())
        assert events.closed_at == 3.0
        assert client.status is None

    _virtual(test)


def test_a_reader_who_stops_reading_holds_the_generator_at_the_bound() -> None:
    async def test() -> None:
        client = Connection()
        events = Events(*[b"x"] * 50)
        client.reading.clear()
        asyncio.get_running_loop().call_later(20.0, client.reading.set)
        asyncio.get_running_loop().call_later(19.0, lambda: given.append(events.given))
        given: list[int] = []
        await client.stream(events())
        assert given == [LIMITS.max_pending]
        assert b"".join(client.bodies) == b"x" * 50 + DONE

    _virtual(test)


def test_a_reader_who_does_not_come_back_is_cut_and_the_generator_closed() -> None:
    async def test() -> None:
        client = Connection()
        events = Events(b"a", 5.0, *[b"x"] * 50)
        asyncio.get_running_loop().call_later(1.0, client.reading.clear)
        await client.stream(events())
        assert client.aborted
        assert client.breaks == ["slow_reader"]
        assert events.closed_at == 5.0 + LIMITS.slow_reader_seconds
        assert not client.ended

    _virtual(test)


@pytest.mark.parametrize("reading", [True, False])
def test_a_cancelled_response_closes_the_generator_and_says_so_to_who_reads(reading: bool) -> None:
    async def test() -> None:
        client = Connection()
        events = Events(b"a", 1000.0)
        task = asyncio.ensure_future(client.stream(events()))
        await asyncio.sleep(2.0)
        if not reading:
            client.reading.clear()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert events.closed_at == 2.0
        assert client.breaks == ["server_stopping"]
        assert client.ended == reading
        if reading:
            assert json.loads(client.bodies[-1].removeprefix(b"data: "))["error"]["code"] == "server_stopping"

    _virtual(test)


def test_events_are_numbered_from_one_and_nothing_else_is() -> None:
    async def test() -> None:
        client = Connection()
        await client.stream(Events(b"a", b"b", 20.0, b"c")())
        assert client.ids == ["1", "2", "3"]
        assert b"x-weft-stream-id" not in client.headers

    _virtual(test)


def test_a_durable_stream_says_its_name_in_each_id_and_goes_on_after_what_the_client_has() -> None:
    async def test() -> None:
        client = Connection(StreamPosition(stream_id="name", after=2))
        await client.stream(Events(b"a", b"b", 1.0, b"c", b"d")())
        assert client.ids == ["name:3", "name:4"]
        assert client.headers[b"x-weft-stream-id"] == b"name"
        assert b"".join(client.bodies) == b"cd" + DONE

    _virtual(test)


def test_a_client_who_has_every_event_gets_the_end_alone() -> None:
    async def test() -> None:
        client = Connection(StreamPosition(stream_id="name", after=2))
        await client.stream(Events(b"a", b"b")())
        assert client.bodies == [DONE]
        assert client.ids == []

    _virtual(test)


def test_a_stream_that_would_not_outlive_the_server_says_so_once_and_when_that_is_over() -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        client = Connection(
            StreamPosition(stream_id="name", notice=lambda: "log_full" if 0.5 < loop.time() < 2.5 else None)
        )
        await client.stream(Events(b"a", 1.0, b"b", 1.0, b"c", 1.0)())
        assert b"".join(client.bodies) == b"a: not durable: log_full\nbc: durable again\n" + DONE

    _virtual(test)


@pytest.mark.parametrize(("leaves_at", "abandoned"), [(3.0, True), (7.0, False)])
def test_a_client_who_leaves_before_it_knows_the_stream_abandons_it(leaves_at: float, abandoned: bool) -> None:
    async def test() -> None:
        told: list[bool] = []
        client = Connection(StreamPosition(stream_id="name", abandon=lambda: told.append(True)))
        asyncio.get_running_loop().call_later(leaves_at, client.left.set)
        await client.stream(Events(5.0, b"a", 1000.0)())
        assert bool(told) == abandoned

    _virtual(test)


def test_a_frame_is_one_data_line() -> None:
    assert frame(b"{}") == b"data: {}\n\n"


def test_the_sdk_takes_no_comment_for_an_event() -> None:
    text = b"id: 0\n" + frame(b'{"a": 1}') + HEARTBEAT + HEARTBEAT + b"id: 1\n" + frame(b'{"a": 2}') + HEARTBEAT + DONE
    decoder = SSEDecoder()
    events = [event for line in text.decode().split("\n")[:-1] if (event := decoder.decode(line)) is not None]
    assert [event.data for event in events] == ['{"a": 1}', '{"a": 2}', "[DONE]"]
