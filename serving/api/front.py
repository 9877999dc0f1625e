"""The outermost layer: the gate, who asks, a request id, every failure in one shape, one log line. No client's text is
logged.

Nothing behind it is reached by a request that was not authenticated, but for the health probes: a path is closed
until it is named here, and a WebSocket is as any other.
"""

import asyncio
import logging
import re
import time
from collections.abc import Mapping

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.api.caller import Caller
from serving.api.error_reply import (
    error_code,
    error_reply,
    http_error_code,
    http_error_reply,
    stopping,
)
from serving.api.error_shapes import shape_of
from serving.api.gate import PROBED_PATHS, Admission, Gate
from serving.api.request_events import recorded_request
from serving.api.request_log import log_request
from serving.api.service import new_id
from serving.api.sse import LEFT
from serving.api.tls import PEER_EXTENSION
from serving.errors import AuthenticationError, EngineError, InternalError, WeftError
from serving.events.event_log import EventLog
from serving.events.event_types import Protocol
from serving.gateway.gateway import Gateway
from serving.gateway.principal import Credentials, Principal
from serving.gateway.principal import Scope as Grant
from serving.observability.logs import log_failure
from serving.observability.metrics import Metrics
from serving.observability.request_trace import UNTRACED, Tracing

_ECHOED = re.compile(r"[!-~]{1,64}")
_QUIET_PATHS = ("/health", "/health/live", "/health/ready", "/metrics", "/status.json")
_PAGE_PATHS = ("/", "/admin", "/status")  # where a person comes with a browser, which then asks for the key by itself
# What a path needs beside a name; INFERENCE where it is not here.
_GRANTS = {"/metrics": Grant.ADMIN, "/status.json": Grant.ADMIN}
_TRACED = "/v1/"
_MESSAGES = "/v1/messages"
_GENERATING: Mapping[str, Protocol] = {
    "/v1/chat/completions": "chat.completions",
    "/v1/completions": "completions",
    "/v1/messages": "messages",
    "/v1/responses": "responses",
}
_PROTOCOLS: Mapping[str, Protocol] = {**_GENERATING, "/v1/embeddings": "embeddings"}
_WS_DENIAL = "websocket.http.response"
_WS_POLICY_VIOLATION, _WS_INTERNAL_ERROR = 1008, 1011

logger = logging.getLogger(__name__)


class Front:
    """Each request gets an id of the server's in X-Request-Id. A client's own is echoed in X-Client-Request-Id where it
    is short printable ASCII, and is otherwise unused. `state.caller` says who asks."""

    def __init__(
        self,
        app: ASGIApp,
        metrics: Metrics,
        gate: Gate,
        gateway: Gateway,
        grants: Mapping[str, Grant] = _GRANTS,
        default_grant: Grant = Grant.INFERENCE,
        tracing: Tracing | None = None,
        events: EventLog | None = None,
        model_name: str = "",
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._gate = gate
        self._gateway = gateway
        self._grants = grants
        self._default_grant = default_grant
        self._tracing = tracing or Tracing()
        self._events = events or EventLog()
        self._model_name = model_name  # for the events of requests that are refused here

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, send, self._tracing)
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
            app = exchange.admission.preflight(scope)
            if app is None:
                principal = await self._principal(scope)
                exchange.identify(principal)
                if exchange.caller is not None and scope["path"] in _GENERATING:
                    self._knock(exchange.caller)
                app = self._app
            await app(scope, receive, exchange.send)
        except (WeftError, HTTPException, ClientDisconnect) as error:
            return error
        except asyncio.CancelledError:
            await self._reply_error(stopping(), scope, receive, exchange)
            exchange.end_trace(stopping().code)
            raise
        except Exception as error:  # the client gets a 500 without its text, the log its frames
            log_failure(logger, "request failed", error, request_id=exchange.request_id)
            return InternalError()
        return None

    def _knock(self, caller: Caller) -> None:
        """Here it costs no body and no prompt."""
        with recorded_request(self._events, caller, self._model_name):
            self._gateway.knock(caller.principal, wish_is_known=False)

    async def _principal(self, scope: Scope) -> Principal | None:
        """None on the paths that are open to all. Raises WeftError."""
        if scope["type"] == "http" and scope["path"] in PROBED_PATHS:
            return None
        try:
            certificate = scope.get("extensions", {}).get(PEER_EXTENSION)
            principal = await self._gateway.authenticate(
                Credentials.of(_headers_once(scope), certificate=certificate),
            )
        except AuthenticationError as error:
            scheme = "Basic" if scope["path"] in _PAGE_PATHS else "Bearer"
            error.metadata = {"www-authenticate": f'{scheme} realm="weft"'}
            raise
        principal.require(self._grants.get(scope["path"], self._default_grant))
        return principal

    async def _reply_error(
        self, error: WeftError | HTTPException, scope: Scope, receive: Receive, exchange: "_Exchange"
    ) -> None:
        """After a response has started nothing can be said; the server closes the connection."""
        if scope["type"] == "websocket" and (exchange.status is not None or _WS_DENIAL not in scope["extensions"]):
            code = _WS_INTERNAL_ERROR if isinstance(error, EngineError) else _WS_POLICY_VIOLATION
            await exchange.close(code)
            return
        if exchange.status is not None:
            return
        shape = shape_of(scope["path"])
        if isinstance(error, WeftError):
            reply: Response = error_reply(error, shape)
        else:
            reply = http_error_reply(error, shape)
        await reply(scope, receive, exchange.send)


class _Exchange:
    """One request and what was sent for it."""

    def __init__(self, scope: Scope, send: Send, tracing: Tracing) -> None:
        self.request_id = new_id()
        self.status: int | None = None
        self.admission: Admission | None = None  # None: refused at the gate
        scope.setdefault("state", {}).update(request_id=self.request_id, arrival=time.monotonic())
        scope.setdefault("extensions", {})
        self._scope = scope
        self._send = send
        self._start = time.monotonic()
        self.caller: Caller | None = None
        self._closed = False  # a WebSocket
        self._tracing = tracing
        self._trace = UNTRACED
        self._replying: float | None = None  # since when
        theirs = Headers(scope=scope).get("x-request-id", "")
        self._echo = theirs if _ECHOED.fullmatch(theirs) else None

    def identify(self, principal: Principal | None) -> None:
        if principal is None:
            return
        scope = self._scope
        if scope["type"] == "http" and scope["path"].startswith(_TRACED):  # each message of a WebSocket has its own
            self._trace = self._tracing.begin(scope["method"], Headers(scope=scope), self._start)
        self.caller = Caller(
            request_id=self.request_id,
            principal=principal,
            arrival=self._start,
            trace=self._trace,
            protocol=_PROTOCOLS.get(scope["path"], "internal"),
        )
        scope["state"]["caller"] = self.caller

    async def send(self, message: Message) -> None:
        if message["type"] in ("http.response.start", "websocket.accept", "websocket.http.response.start"):
            self.status = message.get("status", 101)
            self._replying = time.monotonic()
            message.setdefault("headers", [])
            headers = MutableHeaders(scope=message)
            headers["x-request-id"] = self.request_id
            if self._scope["path"].startswith(_MESSAGES):
                headers["request-id"] = self.request_id  # as Anthropic's SDKs read it
            if self._echo is not None:
                headers["x-client-request-id"] = self._echo
            if self.caller is not None:
                headers.update(self.caller.reply_fields)
            if self.admission is not None:
                headers.update(self.admission.headers)
                if self.admission.vary:
                    headers.add_vary_header("Origin")
        self._closed = self._closed or message["type"] == "websocket.close"
        await self._send(message)

    async def close(self, code: int) -> None:
        """A WebSocket, unless it is closed."""
        if not self._closed:
            await self.send({"type": "websocket.close", "code": code})

    def log(self, code: str | None) -> None:
        """`route` is the pattern that matched: a path may hold anything."""
        state = self._scope["state"]
        route = getattr(self._scope.get("route"), "path", None)
        if route in _QUIET_PATHS and self.status == 200:
            return
        code = code or state.get("break_code")
        log_request(
            self.request_id,
            self.caller and self.caller.principal,
            self._trace,
            method=self._scope.get("method", "WEBSOCKET"),
            route=route,
            start=self._start,
            code=code,
            generation=state.get("generation"),
            status=self.status,
        )
        self.end_trace(code)

    def end_trace(self, code: str | None) -> None:
        trace = self._trace
        if not trace.is_recorded:
            return
        method, route = self._scope["method"], getattr(self._scope.get("route"), "path", None)
        if self._replying is not None:
            trace.record("reply", self._replying, time.monotonic())
        attributes = {"http.request.method": method, "weft.request_id": self.request_id}
        if route is not None:
            attributes["http.route"] = route
        trace.describe(attributes, name=method if route is None else f"{method} {route}")
        if self.status is not None:
            trace.describe({"http.response.status_code": self.status})
        trace.end(code)


def _headers_once(scope: Scope) -> Mapping[str, str]:
    """Raises HTTPException where a header that says who asks is given twice: two readers could take either."""
    headers = Headers(scope=scope)
    for name in ("authorization", "x-api-key"):
        if len(headers.getlist(name)) > 1:
            raise HTTPException(400, f"the {name} header is given more than once")
    return headers
