"""A stream of server-sent events.

    data: {...}        a chunk, with its number: `id: 7`, or `id: STREAM:7` where the stream can be read again
    : keep-alive       a comment after 15 seconds of silence, which clients skip
    data: [DONE]       the end of a complete stream
    data: {"error"}    instead of [DONE]: the stream failed; nothing follows

What fails before the first event is answered with an HTTP status instead. A client that leaves, or that does not read,
closes the events' generator, and with it the generation.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from types import TracebackType

import msgspec
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from serving.api.connection import until_disconnect
from serving.api.error_reply import error_code, error_object, stopping
from serving.api.service import StreamLimits
from serving.errors import InternalError, WeftError
from serving.observability.logs import log_failure

DONE = b"data: [DONE]\n\n"
LEFT = "client_disconnected"
# A comment has no empty line after it: after an id, clients such as OpenAI's take that for an event without data.
HEARTBEAT = b": keep-alive\n"
ABORT_EXTENSION = "weft.abort"  # in a scope's extensions: a function that drops the connection at once

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would collect the events otherwise
]

logger = logging.getLogger(__name__)


def frame(data: bytes) -> bytes:
    """JSON has no raw line ends, so one `data:` line holds it."""
    return b"data: " + data + b"\n\n"


def unframed(event: bytes) -> bytes:
    """The JSON that `frame` was given."""
    return event[len(b"data: ") : -len(b"\n\n")]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPosition:
    """Which stream is read, and from where."""

    stream_id: str = ""  # empty: the stream ends with its connection
    after: int = 0  # the number of the last event that the client has
    notice: Callable[[], str | None] = lambda: None  # why it would not outlive this process now
    abandon: Callable[[], None] = lambda: None  # called where the client left before it was told the stream's id

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        return [(b"x-weft-stream-id", self.stream_id.encode())] if self.stream_id else []

    @property
    def id_prefix(self) -> bytes:
        return f"id: {self.stream_id}:".encode() if self.stream_id else b"id: "


def _failed(error: WeftError) -> bytes:
    return frame(msgspec.json.encode(error_object(error)))


@dataclass(frozen=True, slots=True)
class Terminal:
    """A stream's last event, as its protocol has it."""

    done: bytes = DONE
    failed: Callable[[WeftError], bytes] = _failed


class EventStream(Response):
    """Sends framed events as they come, all that are ready in one write."""

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        limits: StreamLimits,
        on_break: Callable[[str], None],
        position: StreamPosition | None = None,
        heartbeat: Callable[[], bytes] = lambda: HEARTBEAT,
        terminal: Terminal | None = None,
    ) -> None:
        """`events` are all of them, from the first on. `on_break` is told why a stream that had begun did not come to
        its [DONE]: an error's code, LEFT or "slow_reader". `position` is given for a durable stream. `heartbeat` is the
        comment that a silence is filled with."""
        super().__init__()
        self._events = events
        self._limits = limits
        self._on_break = on_break
        self._heartbeat = heartbeat
        self._position = position or StreamPosition()
        self._last = terminal or Terminal()
        self._notice: str | None = None
        self._pending: list[bytes] = []
        self._failure: WeftError | None = None
        self._ended = False  # the events
        self._started = False  # the response
        self._complete = False  # the response, with its terminal event
        self._request_id: str | None = None
        self._wake = asyncio.Event()
        self._room = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises the WeftError that came before the first event."""
        self._request_id = scope.get("state", {}).get("request_id")
        pump = asyncio.ensure_future(self._pump())
        gone = asyncio.ensure_future(until_disconnect(receive))
        gone.add_done_callback(lambda _: self._wake.set())
        watch = _SendWatch(self._limits, self._wake)
        try:
            await self._wait_for_start()
            if self._failure is not None and not self._pending:
                raise self._failure
            async with watch:
                await self._write_all(_watched(send, watch), gone, watch)
        except asyncio.CancelledError:
            await self._end_with(stopping(), send)
            raise
        else:
            if watch.stalled:
                self._on_break("slow_reader")
                await _drop_connection(scope, gone)
            elif not self._complete:
                self._on_break(LEFT)
                if not self._started:
                    self._position.abandon()
        finally:
            for task in (pump, gone):
                task.cancel()
            await asyncio.gather(pump, gone, return_exceptions=True)

    async def _wait_for_start(self) -> None:
        """For the first event, so that an error can still have a status; but not beyond one heartbeat."""
        try:
            async with asyncio.timeout(self._limits.heartbeat_seconds):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _write_all(self, send: Send, gone: asyncio.Future[None], watch: "_SendWatch") -> None:
        if gone.done():
            return
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS + self._position.headers})
        self._started = True
        while not gone.done():
            data = self._news() + b"".join(self._pending)
            self._pending.clear()
            self._room.set()
            if self._ended:
                await send({"type": "http.response.body", "body": data + self._terminal(), "more_body": False})
                self._complete = True
                return
            if data or watch.is_silent:
                await send({"type": "http.response.body", "body": data or self._heartbeat(), "more_body": True})
            else:
                await self._wake.wait()
                self._wake.clear()

    def _news(self) -> bytes:
        """A comment, where the stream has become undurable or durable again."""
        notice = self._position.notice()
        if notice == self._notice:
            return b""
        self._notice = notice
        return b": durable again\n" if notice is None else f": not durable: {notice}\n".encode()

    def _terminal(self) -> bytes:
        if self._failure is None:
            return self._last.done
        self._on_break(error_code(self._failure))
        return self._last.failed(self._failure)

    async def _end_with(self, failure: WeftError, send: Send) -> None:
        """A last event for a stream that is cancelled, unless its reader is not reading."""
        if not self._started or self._complete:
            return
        self._failure = failure
        data = b"".join(self._pending) + self._terminal()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0):
                await send({"type": "http.response.body", "body": data, "more_body": False})

    async def _pump(self) -> None:
        try:
            after, prefix, number = self._position.after, self._position.id_prefix, 0
            async with aclosing(self._events) as events:
                async for event in events:
                    number += 1
                    if number <= after:
                        continue
                    self._pending.append(b"%b%d\n%b" % (prefix, number, event))
                    self._wake.set()
                    if len(self._pending) >= self._limits.max_pending:
                        self._room.clear()
                        await self._room.wait()
        except WeftError as error:
            self._failure = error
        except Exception as error:  # told to the client without its text, and logged
            log_failure(logger, "stream failed", error, request_id=self._request_id)
            self._failure = InternalError()
        finally:
            self._ended = True
            self._wake.set()


class _SendWatch:
    """A stream's one timer, re-armed a few times a minute: it wakes the stream after a silence, and ends the block
    where one send has waited too long for its reader."""

    def __init__(self, limits: StreamLimits, wake: asyncio.Event) -> None:
        self._limits = limits
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._last_send = self._loop.time()
        self._sending = False
        self._block = asyncio.timeout(None)
        self._timer: asyncio.TimerHandle | None = None
        self.stalled = False

    @property
    def is_silent(self) -> bool:
        return self._loop.time() - self._last_send >= self._limits.heartbeat_seconds

    async def __aenter__(self) -> None:
        await self._block.__aenter__()
        self._timer = self._loop.call_later(self._limits.heartbeat_seconds, self._tick)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> bool:
        if self._timer is not None:
            self._timer.cancel()
        try:
            await self._block.__aexit__(kind, error, frames)
        except TimeoutError:
            self.stalled = True
        return self.stalled

    def begin_send(self) -> None:
        self._last_send = self._loop.time()
        self._sending = True

    def end_send(self) -> None:
        self._sending = False

    def _tick(self) -> None:
        now = self._loop.time()
        patience = self._limits.slow_reader_seconds if self._sending else self._limits.heartbeat_seconds
        due = self._last_send + patience
        if due <= now:
            if self._sending:
                self._block.reschedule(now)
            else:
                self._wake.set()
            due = now + self._limits.heartbeat_seconds
        self._timer = self._loop.call_at(due, self._tick)


def _watched(send: Send, watch: _SendWatch) -> Send:
    async def watched(message: Message) -> None:
        watch.begin_send()
        await send(message)
        watch.end_send()

    return watched


async def _drop_connection(scope: Scope, gone: asyncio.Future[None]) -> None:
    """Without this the socket would be closed only after its reader has taken what is buffered."""
    if gone.done():
        return
    abort = scope.get("extensions", {}).get(ABORT_EXTENSION)
    if abort is not None:
        abort()
        await gone
