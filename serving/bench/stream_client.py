"""A lean HTTP/1.1 client for server-sent events: one callback per event, no task and no queue in between.

A benchmark's client shares its machine with the server, so what it costs is taken from what it measures. An event costs
a few microseconds here; through a general client it costs tens to hundreds.
"""

import asyncio
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

import httptools

from serving.errors import RequestError

OnEvent = Callable[[float, bytes], None]  # when it arrived (perf_counter), and the payload after `data: `


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    body: bytes  # of a reply that was not an event stream


class StreamClient:
    """Keeps connections open between requests. Use within one event loop."""

    def __init__(self, url: str, headers: Mapping[str, str] | None = None) -> None:
        """`url`: http://host:port with an optional path, to which each request's path is added. Raises RequestError."""
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            raise RequestError(
                f"{url!r} is not an http:// or https:// address: its port is no number", param="url"
            ) from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise RequestError(f"{url!r} is not an http:// or https:// address", param="url")
        self._host = parts.hostname
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = port or (443 if self._tls else 80)
        self._prefix = parts.path.rstrip("/")
        lines = {
            "host": parts.netloc.rpartition("@")[2],
            "content-type": "application/json",
            "accept": "text/event-stream",
            **(headers or {}),
        }
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        self._idle: list[_Connection] = []

    async def post(self, path: str, body: bytes, on_event: OnEvent) -> Reply:
        """Returns after the reply's end. Raises OSError where the connection fails."""
        head = f"POST {self._prefix}{path} HTTP/1.1\r\n{self._headers}content-length: {len(body)}\r\n\r\n"
        message = head.encode() + body
        while self._idle:  # a server may have closed an idle connection: then another one, or a new one
            connection = self._idle.pop()
            if connection.open:
                try:
                    return await self._exchange(connection, message, on_event)
                except _ClosedWhileIdle:
                    continue
        return await self._exchange(await self._connect(), message, on_event)

    async def close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    async def _connect(self) -> "_Connection":
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(_Connection, self._host, self._port, ssl=self._tls)
        return connection

    async def _exchange(self, connection: "_Connection", message: bytes, on_event: OnEvent) -> Reply:
        try:
            reply = await connection.send(message, on_event)
        except BaseException:
            connection.close()
            raise
        if connection.reusable:
            self._idle.append(connection)
        else:
            connection.close()
        return reply


class _ClosedWhileIdle(ConnectionError):
    """The connection ended before a byte of the reply, on a request that was not its first."""


class _Connection(asyncio.Protocol):
    """One request at a time. Its `on_...` methods are httptools' callbacks."""

    def __init__(self) -> None:
        self.open = False
        self.reusable = False
        self._transport: asyncio.Transport
        self._requests = 0
        self._reply: asyncio.Future[Reply] | None = None

    async def send(self, message: bytes, on_event: OnEvent) -> Reply:
        if not self.open:
            raise ConnectionResetError("the server closed the connection, or spoke, before it was asked anything")
        self._requests += 1
        self._on_event = on_event
        self._reply = asyncio.get_running_loop().create_future()
        self._parser = httptools.HttpResponseParser(self)
        self._is_stream = False
        self._has_length = False
        self._ends_with_connection = False
        self._started = False
        self._buffer = b""
        self._transport.write(message)
        return await self._reply

    def close(self) -> None:
        self.open = False
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.open = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False
        if self._reply is None or self._reply.done():
            return
        if exc is None and self._ends_with_connection:
            self._finish(self._reply)
            return
        kind = _ClosedWhileIdle if self._requests > 1 and not self._started else ConnectionResetError
        self._reply.set_exception(kind("the server closed the connection before the reply's end"))

    def data_received(self, data: bytes) -> None:
        if self._reply is None or self._reply.done():  # nothing was asked
            self.close()
            return
        self._now = time.perf_counter()
        self._started = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.reusable = False
            if not self._reply.done():
                self._reply.set_exception(ConnectionError(f"the reply is not HTTP: {error}"))

    def on_header(self, name: bytes, value: bytes) -> None:
        match name.lower():
            case b"content-type":
                self._is_stream = value.startswith(b"text/event-stream")
            case b"content-length":
                self._has_length = True
            case b"transfer-encoding":
                self._has_length |= b"chunked" in value.lower()

    def on_headers_complete(self) -> None:
        self._ends_with_connection = not self._has_length  # as HTTP/1.0 has it (RFC 9112, 6.3)

    def on_body(self, body: bytes) -> None:
        if not self._is_stream:
            self._buffer += body
            return
        if self._buffer:
            body = self._buffer + body
        if b"\r" in body:  # of what is kept too: a read may end between \r and \n
            body = body.replace(b"\r\n", b"\n")
        *events, self._buffer = body.split(b"\n\n")
        for event in events:
            for line in event.split(b"\n"):
                if line.startswith(b"data:"):
                    self._on_event(self._now, line[5:].lstrip())

    def on_message_complete(self) -> None:
        self.reusable = self._parser.should_keep_alive()
        if self._reply is not None and not self._reply.done():
            self._finish(self._reply)

    def _finish(self, reply: asyncio.Future[Reply]) -> None:
        reply.set_result(Reply(self._parser.get_status_code(), b"" if self._is_stream else self._buffer))
