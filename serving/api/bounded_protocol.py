"""uvicorn's HTTP/1.1 protocol with bounds: on the headers' bytes, on the seconds until they are complete, and on the
connections that wait."""

import asyncio
import logging
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import Response
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from serving.api.accept_queue import AcceptQueue
from serving.api.error_reply import (
    UNAVAILABLE_RETRY_SECONDS,
    error_code,
    error_reply,
    http_error_code,
    http_error_reply,
)
from serving.api.error_shapes import shape_of
from serving.api.service import new_id
from serving.api.sse import ABORT_EXTENSION
from serving.api.tls import PEER_EXTENSION, common_name
from serving.api.unread import unread_seconds
from serving.errors import OverloadedError
from serving.gateway.lag import Lag
from serving.observability.logs import log_event
from serving.observability.metrics import Metrics

HEADER_BYTES = 32 << 10  # request line and headers
HEADER_SECONDS = 10.0  # from the first byte, or from the connection, to the end of the headers
STALL_SECONDS = 1.0  # a timer that fires so late says more about this process than about a client

logger = logging.getLogger(__name__)


class BoundedHttpProtocol(HttpToolsProtocol):
    """A client that opens a connection and sends nothing, or sends a header a minute, is let go. What is refused here
    never reaches the application, so it is counted and logged here, under an id of its own."""

    def __init__(
        self, *args: Any, metrics: Metrics, queue: AcceptQueue | None = None, lag: Lag | None = None, **options: Any
    ) -> None:
        """`queue` is that of all connections of a server, and `lag` what its gateway takes for the process's."""
        super().__init__(*args, **options)
        self._metrics = metrics
        self._queue = queue or AcceptQueue()
        self._lag = lag or Lag()
        self._is_refused = False
        self._in_headers = True
        self._header_bytes = 0  # received while headers are incomplete
        self._field_bytes = 0  # parsed
        self._header_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._in_headers:
            self._stop_timer()
            return
        self._header_bytes += len(data)
        if self._header_bytes > HEADER_BYTES:
            self._refuse_size()
        elif self._header_timer is None:
            self._await_headers()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_headers = True
        self._header_bytes = 0
        self._field_bytes = 0
        certificate = common_name(self.transport.get_extra_info("peercert"))
        self.scope["extensions"] = {ABORT_EXTENSION: self.transport.abort, PEER_EXTENSION: certificate}  # type: ignore[typeddict-item]

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_headers = False
        # What asks for work alone: probes, metrics and pages are answered as long as anything is.
        assert self.parser is not None
        if self.parser.get_method() == b"POST" and self._is_idle:
            if self._queue.refuses():
                self._is_refused = True
                self._refuse_overrun()
                return
            self._lag.read(unread_seconds(self.transport))
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self._is_refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._is_refused:
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        if self._field_bytes > HEADER_BYTES:
            self._refuse_size()
        else:
            self._refuse_http(400, "the request is not valid HTTP/1.1")

    def _await_headers(self) -> None:
        self._header_timer = self.loop.call_later(HEADER_SECONDS, self._headers_late)

    def _headers_late(self) -> None:
        late = self.loop.time() - self._header_timer.when() if self._header_timer else 0.0
        if late > STALL_SECONDS:  # this process stood still: what the client sent may lie unread in the socket
            self._header_timer = self.loop.call_later(STALL_SECONDS, self._headers_late)
            return
        self._header_timer = None
        self._refuse_http(408, f"the headers did not arrive within {HEADER_SECONDS:g} seconds")

    def _stop_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _count(self, size: int) -> None:
        self._field_bytes += size
        if self._field_bytes > HEADER_BYTES:
            raise ValueError("headers too large")  # the parser stops and calls send_400_response

    @property
    def _is_idle(self) -> bool:
        """No response is under way on this connection."""
        return self.cycle is None or self.cycle.response_complete

    def _refuse_size(self) -> None:
        self._refuse_http(431, f"the headers are larger than {HEADER_BYTES} bytes")

    def _refuse_http(self, status: int, message: str) -> None:
        """Whoever speaks no HTTP, or not enough of it, has said no path whose shape would be right."""
        error = HTTPException(status, message)
        self._refuse(http_error_reply(error), http_error_code(error))

    def _refuse_overrun(self) -> None:
        error = OverloadedError(
            "more requests come than this server can even refuse", retry_after=UNAVAILABLE_RETRY_SECONDS
        )
        path = self.url.partition(b"?")[0].decode("latin-1")
        self._refuse(error_reply(error, shape_of(path)), error_code(error))

    def _refuse(self, reply: Response, code: str) -> None:
        """Answers and closes; a stream that this connection still has is left to end."""
        self._stop_timer()
        if self.transport.is_closing():
            return
        request_id, answered = new_id(), self._is_idle
        if answered:
            fields = [*reply.raw_headers, (b"x-request-id", request_id.encode()), (b"connection", b"close")]
            head = b"".join(b"%b: %b\r\n" % field for field in fields)
            self.transport.write(STATUS_LINE[reply.status_code] + head + b"\r\n" + reply.body)
        self.transport.close()
        self._metrics.refuse(code)
        log_event(logger, "request", request_id=request_id, status=reply.status_code if answered else None, code=code)
