"""One line for each request, the same fields whatever the protocol."""

import logging
import time
from typing import Protocol

from serving.gateway.principal import Principal
from serving.observability.logs import log_event
from serving.observability.request_trace import RequestTrace

logger = logging.getLogger(__name__)


class Counted(Protocol):
    """What was generated for a request."""

    @property
    def prompt_tokens(self) -> int: ...

    @property
    def completion_tokens(self) -> int: ...


def log_request(
    request_id: str,
    principal: Principal | None,
    trace: RequestTrace,
    *,
    method: str,
    route: str | None,
    start: float,
    code: str | None,
    generation: Counted | None,
    **fields: object,
) -> None:
    """`route` is a pattern or a constant, as a path may hold anything; `start` is of the monotonic clock; `code` is the
    error's, None where all went well."""
    log_event(
        logger,
        "request",
        request_id=request_id,
        key=principal and principal.key_id,
        method=method,
        route=route,
        seconds=round(time.monotonic() - start, 4),
        code=code,
        prompt_tokens=generation and generation.prompt_tokens,
        completion_tokens=generation and generation.completion_tokens,
        **fields,
        **trace.log_fields,
    )
