"""The Engine protocol over a Unix socket: the API process's side. The other side is `server.py`.

All streams share one gRPC session. A lost session fails every open stream at once with EngineUnavailableError (code
`engine_lost`); the next call connects anew, so this object outlives any number of engine processes.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, cast

import grpc
import grpc.aio
import numpy as np

from serving.engine import wire
from serving.engine.client import EngineInfo, EngineStats
from serving.engine.embedding import EmbedRequest
from serving.engine.operation import Operation, OperationReport
from serving.engine.request import GenerateRequest, TokenEvent
from serving.errors import EngineUnavailableError, RequestError, SetupError, WeftError
from serving.observability.logs import log_event

log = logging.getLogger(__name__)

# EngineUnavailableError.code: nobody took the request, or whoever took it is gone.
NOT_ACCEPTED = "engine_unavailable"
ENGINE_LOST = "engine_lost"

_METADATA = ((wire.PROTOCOL_KEY, wire.PROTOCOL),)
_RECONNECT_OPTIONS = [
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 250),
    ("grpc.use_local_subchannel_pool", 1),
]
_LOOK_AGAIN_SECONDS = 0.5  # longer than the longest wait between two attempts to connect


class RemoteEngine:
    """An Engine behind `socket_path`. Make it and use it within one event loop.

    A peer that is stopped but not dead is found within twice `keepalive_seconds`.
    """

    def __init__(self, socket_path: Path, *, keepalive_seconds: float = 5.0, timeout_seconds: float = 5.0) -> None:
        self._target = f"unix:{socket_path}"
        self._options = [*wire.channel_options(keepalive_seconds), *_RECONNECT_OPTIONS]
        self._timeout_seconds = timeout_seconds
        self._channel: grpc.aio.Channel | None = None
        self._session: _Session | None = None
        self._connecting: asyncio.Task[_Session] | None = None
        self._closed = False

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenEvent, None]:
        """Raises what the engine raised, EngineUnavailableError, or SetupError where it is of another version."""
        message = wire.encode_submit(request)
        session = await self._connected()
        stream = session.open(request.request_id, message)
        try:
            while True:
                event = await stream.next()
                yield event
                if event.finish_reason is not None:
                    return
        finally:
            session.leave(stream)

    async def info(self) -> EngineInfo:
        reply = wire.decode_info(await self._call(wire.INFO, b"", self._timeout_seconds))
        if isinstance(reply, wire.Failure):
            raise reply.error()
        return reply.info

    async def stats(self) -> EngineStats:
        reply = wire.decode_stats(await self._call(wire.STATS, b"", self._timeout_seconds))
        if isinstance(reply, wire.Failure):
            raise reply.error()
        return reply.stats

    async def operate(self, operation: Operation) -> OperationReport:
        """Waits as long as the engine lives: weights may take minutes to load."""
        reply = wire.decode_operated(await self._call(wire.OPERATE, wire.encode(operation), timeout_seconds=None))
        if isinstance(reply, wire.Failure):
            raise reply.error()
        return reply.report

    async def embed(self, request: EmbedRequest) -> np.ndarray:
        """Implements `Embedder`; waits as long as the engine lives."""
        reply = wire.decode_embedded(await self._call(wire.EMBED, wire.encode(request), timeout_seconds=None))
        if isinstance(reply, wire.Failure):
            raise reply.error()
        return np.frombuffer(reply.vectors, "<f4").reshape(reply.texts, -1)

    async def close(self) -> None:
        """Ends the open streams with EngineUnavailableError. The engine process lives on."""
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        if self._session is not None:
            await self._session.close()
        if self._channel is not None:
            await self._channel.close()

    def _open_channel(self) -> grpc.aio.Channel:
        if self._closed:
            raise EngineUnavailableError("this engine client is closed", code=NOT_ACCEPTED)
        if self._channel is None:
            self._channel = grpc.aio.insecure_channel(self._target, options=self._options)
        return self._channel

    async def _reached(self) -> grpc.aio.Channel:
        """The channel, connected if the engine is there. While one waits to connect again its calls fail at once, also
        those to an engine that has just come up."""
        channel = self._open_channel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_AGAIN_SECONDS):
                await channel.channel_ready()
        return channel

    async def _call(self, method: str, message: bytes, timeout_seconds: float | None) -> bytes:
        call = (await self._reached()).unary_unary(f"/{wire.SERVICE}/{method}")
        try:
            return await call(message, metadata=_METADATA, timeout=timeout_seconds)
        except grpc.aio.AioRpcError as error:
            raise _translated(error) from error

    async def _connected(self) -> "_Session":
        """The live session; whoever needs one while it is being made waits for the same one."""
        if self._session is not None and self._session.lost is None:
            return self._session
        if self._connecting is None:
            self._connecting = asyncio.create_task(self._connect())
        return await asyncio.shield(self._connecting)

    async def _connect(self) -> "_Session":
        try:
            self._session = await _Session.connect(await self._reached(), self._timeout_seconds)
            return self._session
        finally:
            self._connecting = None


class _Stream:
    """What arrived for one stream and was not read yet. One reader."""

    __slots__ = ("_error", "_events", "_waiter", "ended", "request_id")

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self.ended = False  # the last event or an error has arrived
        self._events: deque[TokenEvent] = deque()
        self._error: WeftError | None = None
        self._waiter: asyncio.Future[None] | None = None

    def push(self, event: TokenEvent) -> None:
        self._events.append(event)
        self.ended = event.finish_reason is not None
        self._wake()

    def fail(self, error: WeftError) -> None:
        self._error = error
        self.ended = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def next(self) -> TokenEvent:
        """Events that arrived before an error come before it."""
        while not self._events:
            if self._error is not None:
                raise self._error
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._events.popleft()


class _Session:
    """One connection's streams, a task that reads and a task that writes."""

    def __init__(self, call: Any) -> None:
        self.lost: EngineUnavailableError | None = None
        self._call = call
        self._streams: dict[str, _Stream] = {}
        self._outbox: asyncio.Queue[bytes] = asyncio.Queue()
        self._writer = asyncio.create_task(self._write())
        self._reader = asyncio.create_task(self._read())

    @classmethod
    async def connect(cls, channel: grpc.aio.Channel, timeout_seconds: float) -> "_Session":
        call: Any = channel.stream_stream(f"/{wire.SERVICE}/{wire.SESSION}")(metadata=_METADATA)
        try:
            async with asyncio.timeout(timeout_seconds):
                await call.read()  # an empty batch: the server took this version
        except TimeoutError:
            call.cancel()
            raise EngineUnavailableError(
                f"the engine did not answer within {timeout_seconds:g} s", code=NOT_ACCEPTED
            ) from None
        except grpc.aio.AioRpcError as error:
            raise _translated(error) from error
        return cls(call)

    def open(self, request_id: str, submit: bytes) -> _Stream:
        if self.lost is not None:
            raise self.lost
        if request_id in self._streams:
            raise RequestError(f"request_id {request_id!r} is in use", param="request_id")
        stream = self._streams[request_id] = _Stream(request_id)
        self._outbox.put_nowait(submit)
        return stream

    def leave(self, stream: _Stream) -> None:
        """The reader is done with it; tells the engine where the stream has not ended by itself."""
        if self._streams.get(stream.request_id) is stream:
            del self._streams[stream.request_id]
        if not stream.ended and self.lost is None:
            self._outbox.put_nowait(wire.encode(wire.Abort(stream.request_id)))

    async def close(self) -> None:
        self._lose("this engine client was closed")
        self._reader.cancel()
        await asyncio.gather(self._reader, self._writer, return_exceptions=True)

    async def _read(self) -> None:
        reason = "the engine closed the session"
        try:
            while (data := await self._call.read()) is not grpc.aio.EOF:  # pyright: ignore[reportAttributeAccessIssue]
                self._dispatch(wire.decode_batch(cast(bytes, data)))
        except grpc.aio.AioRpcError as error:
            reason = "the engine process is gone"
            log_event(log, "the engine session ended", level=logging.WARNING, status=error.code().name)
        finally:  # whatever ended the reading, no stream may wait for ever
            self._lose(reason)
            self._call.cancel()
            self._writer.cancel()

    def _dispatch(self, batch: wire.Batch) -> None:
        streams = self._streams
        for event in batch.events:
            stream = streams.get(event.request_id)
            if stream is not None:  # else an event that was on its way when the reader left
                stream.push(event)
        for item in batch.failures:
            stream = streams.get(item.request_id)
            if stream is not None:
                stream.fail(item.failure.error())

    async def _write(self) -> None:
        try:
            while True:
                await self._call.write(await self._outbox.get())
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return  # the call is over; the reader learns why

    def _lose(self, reason: str) -> None:
        if self.lost is None:
            self.lost = EngineUnavailableError(reason, code=ENGINE_LOST)
            for stream in self._streams.values():
                if not stream.ended:
                    stream.fail(EngineUnavailableError(reason, code=ENGINE_LOST))


def _translated(error: grpc.aio.AioRpcError) -> WeftError:
    if error.code() in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.UNIMPLEMENTED):
        return SetupError(str(error.details()), code="protocol_mismatch")
    # Without gRPC's details: this message reaches clients, and those name paths of the machine.
    return EngineUnavailableError("the engine does not answer: it is starting or restarting", code=NOT_ACCEPTED)
