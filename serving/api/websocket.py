"""GET /v1/socket: several requests at a time over one WebSocket, in the words of the HTTP API.

What the server sends, one JSON object a message; what clients send: `socket_message.py`.

    {"type": "event", "id": "a", "seq": 1, "data": {...}}     a chunk, as server-sent events have it; counted from 1
    {"type": "reply", "id": "a", "data": {...}}               the whole answer, where `stream` is false
    {"type": "started", "id": "a", "stream_id": ...}          before the events of a durable stream
    {"type": "done", "id": "a"}                               the last message of a request that was answered
    {"type": "error", "id": "a", "error": {...}}              the last message of any other; id null: of no request
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from serving.api.caller import Caller
from serving.api.chat_body import ChatBody
from serving.api.chat_reply import ChatReply
from serving.api.completion_reply import CompletionReply
from serving.api.error_reply import error_code, error_object, stopping
from serving.api.request_body import PARSED_IN_THREAD_ABOVE
from serving.api.request_log import log_request
from serving.api.service import Service, new_id
from serving.api.socket_message import Asked, asked
from serving.api.socket_protocol import DRAINING_EXTENSION
from serving.api.sse import ABORT_EXTENSION, LEFT, unframed
from serving.api.stream_routes import begin_durable, followed_reply, owner_of
from serving.api.tls import PEER_EXTENSION
from serving.errors import (
    EngineError,
    InternalError,
    OverloadedError,
    RateLimitedError,
    RequestError,
    SlowReaderError,
    StreamCancelledError,
    WeftError,
)
from serving.gateway.principal import Credentials, Scope
from serving.observability.logs import log_failure
from serving.sessions.logged_generation import Admitted

PATH = "/v1/socket"
MOST_REQUESTS = 16  # at a time, of one socket

_UNSUPPORTED_DATA, _RESTARTING = 1003, 1012  # close codes

logger = logging.getLogger(__name__)


def socket_routes(service: Service, most_sockets: int) -> list[WebSocketRoute]:
    """`most_sockets` are open at once at most."""
    open_sockets: set[_Socket] = set()

    async def serve(websocket: WebSocket) -> None:
        if len(open_sockets) >= most_sockets:
            raise OverloadedError(
                "too many sockets are open; try again later", retry_after=5.0, code="too_many_sockets"
            )
        socket = _Socket(service, websocket)
        open_sockets.add(socket)
        try:
            await socket.run()
        finally:
            open_sockets.discard(socket)

    return [WebSocketRoute(PATH, serve)]


class _Socket:
    """One client's connection and its requests."""

    def __init__(self, service: Service, websocket: WebSocket) -> None:
        self._service = service
        self._websocket = websocket
        certificate = websocket.scope["extensions"].get(PEER_EXTENSION)
        self._credentials = Credentials.of(websocket.headers, certificate=certificate)
        self._requests: dict[str, _Request] = {}
        self._draining: asyncio.Event = websocket.scope["extensions"].get(DRAINING_EXTENSION) or asyncio.Event()
        self.is_cut = False  # the server stops and waits no longer
        self._closed = False

    async def run(self) -> None:
        """Until the client leaves, or the server has stopped."""
        await self._websocket.accept()
        drain = asyncio.create_task(self._close_when_drained())
        try:
            await self._receive()
        except asyncio.CancelledError:
            self.is_cut = True
            await self._end_requests()
            await self.close(_RESTARTING)
            raise
        finally:
            drain.cancel()
            self._closed = True
            await self._end_requests()

    async def send(self, message: bytes) -> None:
        """Raises WebSocketDisconnect; SlowReaderError where the client takes nothing, who is then cut off."""
        if self._closed:
            raise WebSocketDisconnect(1006)
        patience = self._service.streams.slow_reader_seconds
        try:
            async with asyncio.timeout(patience):
                await self._websocket.send({"type": "websocket.send", "text": message.decode()})
        except WebSocketDisconnect:
            self._closed = True  # the other requests find it out by themselves
            raise
        except TimeoutError:
            self._closed = True
            abort = self._websocket.scope["extensions"].get(ABORT_EXTENSION)
            if abort is not None:
                abort()
            raise SlowReaderError(f"nothing was read for {patience:g} seconds") from None

    async def fail(self, name: str | None, error: WeftError) -> None:
        await self.send(msgspec.json.encode({"type": "error", "id": name, **error_object(error)}))

    async def close(self, code: int) -> None:
        if not self._closed:
            self._closed = True
            await self._websocket.close(code)

    def forget(self, name: str) -> None:
        del self._requests[name]

    async def _receive(self) -> None:
        while True:
            message = await self._websocket.receive()
            if message["type"] == "websocket.disconnect":
                return
            text = message.get("text")
            if text is None:
                await self.close(_UNSUPPORTED_DATA)
                return
            try:
                await self._take(text.encode())
            except (WebSocketDisconnect, SlowReaderError):
                return

    async def _take(self, data: bytes) -> None:
        large = len(data) > PARSED_IN_THREAD_ABOVE
        understood = await asyncio.to_thread(asked, data) if large else asked(data)
        name, running = understood.id, understood.id in self._requests
        error = stopping() if self._draining.is_set() else understood.error
        if understood.message is not None and understood.message.type == "cancel":
            if running:  # else it comes too late
                await self._requests[understood.message.id].cancel()
            return
        if error is None and len(self._requests) >= MOST_REQUESTS:
            error = RateLimitedError(
                f"a socket takes {MOST_REQUESTS} requests at a time; wait for one of them to end",
                retry_after=1.0,  # when one of them ends: nobody knows
                code="too_many_requests",
            )
        if running:
            name = None  # an error under this name would be the end of the request that has it
            error = error or RequestError(f"id {understood.id!r} is in use", param="id", code="invalid_value")
        caller = None
        if error is None and understood.message is not None:
            try:
                caller = await self._caller(understood.message.type)
            except WeftError as refusal:
                error = refusal
        if caller is None or understood.message is None:
            error = error or EngineError("the message was not understood")
            self._service.metrics.refuse(error_code(error))
            await self.fail(name, error)
            return
        self._requests[understood.message.id] = _Request(self, self._service, caller, understood)
        await asyncio.sleep(0)  # its first step: cancelled before it, a task never runs, and would tell no end

    async def _caller(self, kind: str) -> Caller:
        """Of one request: a socket may be open for longer than its key is good. Raises WeftError."""
        arrival = time.monotonic()
        principal = await self._service.gateway.authenticate(self._credentials)
        principal.require(Scope.INFERENCE)
        trace = self._service.tracing.begin(f"{PATH} {kind}", self._websocket.headers, arrival)
        return Caller(request_id=new_id(), principal=principal, arrival=arrival, trace=trace, protocol="websocket")

    async def _end_requests(self) -> None:
        tasks = [request.task for request in self._requests.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _close_when_drained(self) -> None:
        await self._draining.wait()
        while self._requests:
            await asyncio.wait([request.task for request in self._requests.values()])
        await self.close(_RESTARTING)


class _Request:
    """One request of a socket, from its start to its one terminal message."""

    def __init__(self, socket: _Socket, service: Service, caller: Caller, understood: Asked) -> None:
        assert understood.message is not None
        self._socket = socket
        self._service = service
        self._caller = caller
        self._message = understood.message
        self._body = understood.body
        self._name = msgspec.json.encode(understood.message.id)
        self._is_cancelled = False
        self._stream_id: str | None = None  # of a durable stream
        self._reply: ChatReply | CompletionReply | None = None
        self.task = asyncio.create_task(self._run())

    async def cancel(self) -> None:
        """As the client wishes. A durable stream ends for all of its readers."""
        self._is_cancelled = True
        if self._stream_id is not None:
            await self._service.durable.cancel(self._stream_id)
        self.task.cancel()

    async def _run(self) -> None:
        start, code = time.monotonic(), None
        try:
            try:
                await self._answer()
                await self._send("done")
            except asyncio.CancelledError:
                if not (self._is_cancelled or self._socket.is_cut):
                    raise
                raise stopping() if self._socket.is_cut else _cancelled() from None
        except (asyncio.CancelledError, WebSocketDisconnect):
            code = LEFT
        except WeftError as error:
            code = await self._fail(error)
        except Exception as error:  # told to the client without its text, and logged
            log_failure(logger, "request failed", error, request_id=self._caller.request_id)
            code = await self._fail(InternalError())
        finally:
            self._socket.forget(self._message.id)
            self._log(code, start)

    async def _answer(self) -> None:
        body, service = self._body, self._service
        if body is None:
            admitted = await service.durable.find(self._message.stream_id or "", owner_of(self._caller.principal))
            await self._follow(admitted)
            return
        service.check_served(body.model)
        if isinstance(body, ChatBody):
            self._reply = ChatReply(service, body, self._caller)
        else:
            self._reply = CompletionReply(service, body, self._caller)
        if body.durable:
            await self._follow(await begin_durable(service, self._caller, self._reply, body))
        elif body.stream:
            await self._send_events(self._reply.events(), after=0)
        else:
            await self._send("reply", b',"data":%b' % await self._reply.whole())

    async def _follow(self, admitted: Admitted) -> None:
        self._stream_id = admitted.stream_id
        self._reply = followed_reply(self._service, admitted)
        await self._send("started", b',"stream_id":%b' % msgspec.json.encode(admitted.stream_id))
        await self._send_events(self._reply.events(), after=self._message.after or 0)

    async def _send_events(self, events: AsyncGenerator[bytes, None], after: int) -> None:
        number = 0
        async with aclosing(events):
            async for event in events:
                number += 1
                if number > after:
                    await self._send("event", b',"seq":%d,"data":%b' % (number, unframed(event)))

    async def _send(self, kind: str, more: bytes = b"") -> None:
        await self._socket.send(b'{"type":"%b","id":%b%b}' % (kind.encode(), self._name, more))

    async def _fail(self, error: WeftError) -> str:
        code = error_code(error)
        self._service.metrics.refuse(code)
        try:
            await self._socket.fail(self._message.id, error)
        except (WebSocketDisconnect, SlowReaderError):
            return code  # nobody is there to be told
        return code

    def _log(self, code: str | None, start: float) -> None:
        log_request(
            self._caller.request_id,
            self._caller.principal,
            self._caller.trace,
            method="WEBSOCKET",
            route=f"{PATH} {self._message.type}",
            start=start,
            code=code,
            generation=self._reply and self._reply.generation,
        )
        self._caller.trace.describe({"weft.request_id": self._caller.request_id})
        self._caller.trace.end(code)


def _cancelled() -> StreamCancelledError:
    return StreamCancelledError("the request was cancelled", code="stream_cancelled")
