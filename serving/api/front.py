"""The outermost layer: the gate, a request id, every failure in one shape, one log line. No client's text is logged."""

import asyncio
import logging
import re
import time

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.api.error_reply import error_code, error_reply, http_error_code, http_error_reply, stopping
from serving.api.gate import Admission, Gate
from serving.api.service import new_id
from serving.api.sse import LEFT
from serving.errors import EngineError, WeftError
from serving.observability.logs import log_event, log_failure
from serving.observability.metrics import Metrics

_ECHOED = re.compile(r"[!-~]{1,64}")
_QUIET_PATHS = ("/health", "/health/live", "/health/ready", "/metrics")

logger = logging.getLogger(__name__)


class Front:
    """Each request gets an id of the server's in X-Request-Id. A client's own is echoed in X-Client-Request-Id where it
    is short printable ASCII, and is otherwise unused."""

    def __init__(self, app: ASGIApp, metrics: Metrics, gate: Gate) -> None:
        self._app = app
        self._metrics = metrics
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, send)
        error = await self._failure(scope, receive, exchange)
        code = None
        if isinstance(error, WeftError | HTTPException):
            code = error_code(error) if isinstance(error, WeftError) else http_error_code(error)
            self._metrics.refuse(code)
            await self._reply_error(error, scope, receive, exchange)
        exchange.log(LEFT if isinstance(error, ClientDisconnect) else code)

    async def _failure(self, scope: Scope, receive: Receive, exchange: "_Exchange") -> Exception | None:
        try:
            exchange.admission = self._gate.admit(scope)
            app = exchange.admission.preflight(scope) or self._app
            await app(scope, receive, exchange.send)
        except (WeftError, HTTPException, ClientDisconnect) as error:
            return error
        except asyncio.CancelledError:
            await self._reply_error(stopping(), scope, receive, exchange)
            raise
        except Exception as error:  # the client gets a 500 without its text, the log its frames
            log_failure(logger, "request failed", error, request_id=exchange.request_id)
            return EngineError("the server failed on this request", code="internal_error")
        return None

    async def _reply_error(
        self, error: WeftError | HTTPException, scope: Scope, receive: Receive, exchange: "_Exchange"
    ) -> None:
        """After a response has started nothing can be said; the server closes the connection."""
        if exchange.status is not None:
            return
        reply: Response = error_reply(error) if isinstance(error, WeftError) else http_error_reply(error)
        await reply(scope, receive, exchange.send)


class _Exchange:
    """One request and what was sent for it."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self.request_id = new_id()
        self.status: int | None = None
        self.admission: Admission | None = None  # None: refused at the gate
        scope.setdefault("state", {}).update(request_id=self.request_id, arrival=time.monotonic())
        self._scope = scope
        self._send = send
        self._start = time.monotonic()
        theirs = Headers(scope=scope).get("x-request-id", "")
        self._echo = theirs if _ECHOED.fullmatch(theirs) else None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["x-request-id"] = self.request_id
            if self._echo is not None:
                headers["x-client-request-id"] = self._echo
            if self.admission is not None:
                headers.update(self.admission.headers)
                if self.admission.vary:
                    headers.add_vary_header("Origin")
        await self._send(message)

    def log(self, code: str | None) -> None:
        """`route` is the pattern that matched: a path may hold anything."""
        state = self._scope["state"]
        generation = state.get("generation")
        route = getattr(self._scope.get("route"), "path", None)
        if route in _QUIET_PATHS and self.status == 200:
            return
        log_event(
            logger,
            "request",
            request_id=self.request_id,
            method=self._scope["method"],
            route=route,
            status=self.status,
            seconds=round(time.monotonic() - self._start, 4),
            code=code or state.get("break_code"),
            prompt_tokens=generation and generation.prompt_tokens,
            completion_tokens=generation and generation.completion_tokens,
        )
