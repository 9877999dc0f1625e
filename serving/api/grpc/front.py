"""Around each call: who asks, an id, every failure as a status, one log line. No client's text is logged."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc.aio

from serving.api.caller import Caller
from serving.api.error_reply import error_code, stopping
from serving.api.grpc.status import abort
from serving.api.request_log import Counted, log_request
from serving.api.service import Service, new_id
from serving.api.sse import LEFT
from serving.errors import ForbiddenError, InternalError, OverloadedError, RequestError, WeftError
from serving.gateway.principal import Credentials, Scope
from serving.observability.logs import log_failure

REQUEST_ID_KEY = "x-request-id"
MOST_CALLS = 4096  # open at once, over all connections
TIMED_OUT = "deadline_exceeded"

logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True, eq=False)
class Call:
    """One call, as its handler sees it."""

    caller: Caller
    task: asyncio.Task[object] | None = field(default_factory=asyncio.current_task)
    generation: Counted | None = None  # for the log
    is_cut: bool = False  # the server stops and waits no longer


class GrpcFront:
    def __init__(self, service: Service, *, most_calls: int = MOST_CALLS) -> None:
        self._service = service
        self._most_calls = most_calls
        self._calls: set[Call] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._retired = False

    @asynccontextmanager
    async def call(self, context: grpc.aio.ServicerContext, method: str) -> AsyncIterator[Call]:
        """Around a handler's work, which may raise any WeftError: the client gets it as a status."""
        request_id, start = new_id(), time.monotonic()
        call = Call(caller=Caller(request_id=request_id))
        code: str | None = None
        if not self._retired:
            self._begin(call)
        try:
            try:
                self._check_room()
                call.caller = await self._admitted(context, method, request_id, start)
                yield call
            except asyncio.CancelledError:
                code = _why_cancelled(call, context)
                if not call.is_cut:
                    raise
                await abort(context, stopping())
            except WeftError as error:
                code = error_code(error)
                self._service.metrics.refuse(code)
                await abort(context, error)
            except grpc.aio.BaseError:
                raise
            except Exception as error:  # the client gets a code without its text, the log its frames
                log_failure(logger, "request failed", error, request_id=request_id)
                failure = InternalError()
                code = error_code(failure)
                self._service.metrics.refuse(code)
                await abort(context, failure)
        finally:
            self._end(call)
            log_request(
                call.caller.request_id,
                call.caller.principal,
                call.caller.trace,
                method="gRPC",
                route=method,
                start=start,
                code=code,
                generation=call.generation,
            )
            call.caller.trace.end(code)

    def retire(self) -> None:
        """From now on new calls are told to ask again. Not left to gRPC: some of those that come while a server stops
        would see themselves cancelled, which no client tries again."""
        self._retired = True

    async def drained(self) -> None:
        """Returns when no call is running that began before it was retired."""
        await self._idle.wait()

    def cut(self) -> None:
        """Ends every call that is still running, with the status that says to ask again."""
        for call in self._calls:
            call.is_cut = True
            if call.task is not None:
                call.task.cancel()

    def _check_room(self) -> None:
        """Raises EngineUnavailableError once retired, OverloadedError where calls that wait for their request to arrive
        would be too many: they hold no stream's slot."""
        if self._retired:
            raise stopping()
        if len(self._calls) > self._most_calls:
            raise OverloadedError(
                f"{self._most_calls} calls are open; try again later", retry_after=1.0, code="too_many_calls"
            )

    async def _admitted(
        self, context: grpc.aio.ServicerContext, method: str, request_id: str, arrival: float
    ) -> Caller:
        """Raises AuthenticationError, ForbiddenError."""
        await context.send_initial_metadata(((REQUEST_ID_KEY, request_id),))
        headers = _once(context.invocation_metadata() or ())
        if "origin" in headers:  # only a browser writes it, and none of weft's pages speaks gRPC
            raise ForbiddenError("web pages may not call this port", code="origin_not_allowed")
        names = context.auth_context().get("x509_common_name") or ()
        certificate = next((name.decode(errors="replace") for name in names), None)
        principal = await self._service.gateway.authenticate(Credentials.of(headers, certificate=certificate))
        principal.require(Scope.INFERENCE)
        trace = self._service.tracing.begin(
            method, headers, arrival, {"rpc.system": "grpc", "rpc.method": method, "weft.request_id": request_id}
        )
        return Caller(request_id=request_id, principal=principal, arrival=arrival, trace=trace, protocol="grpc")

    def _begin(self, call: Call) -> None:
        self._calls.add(call)
        self._idle.clear()

    def _end(self, call: Call) -> None:
        self._calls.discard(call)
        if not self._calls:
            self._idle.set()


def _once(metadata: Iterable[tuple[str, str | bytes]]) -> dict[str, str]:
    """Raises RequestError where a key that says who asks is given twice: two readers could take either."""
    headers: dict[str, str] = {}
    for key, value in metadata:
        if key in headers and key in ("authorization", "x-api-key"):
            raise RequestError(f"{key} is given more than once", param=key, code="invalid_value")
        if isinstance(value, str):
            headers[key] = value
    return headers


def _why_cancelled(call: Call, context: grpc.aio.ServicerContext) -> str:
    if call.is_cut:
        return stopping().code or ""
    remaining = context.time_remaining()
    return TIMED_OUT if remaining is not None and remaining <= 0 else LEFT
