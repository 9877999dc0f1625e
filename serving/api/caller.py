"""Who asked, and when: what a request's front knows and its reply needs."""

import time
from dataclasses import dataclass, field

from starlette.requests import Request

from serving.events.event_types import Protocol
from serving.gateway.principal import Principal, anonymous
from serving.observability.request_trace import UNTRACED, RequestTrace


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    request_id: str
    principal: Principal = field(default_factory=anonymous)
    arrival: float = field(default_factory=time.monotonic)  # seconds of the monotonic clock
    reply_fields: dict[str, str] = field(default_factory=dict)  # headers that the answer's head will have
    trace: RequestTrace = UNTRACED
    protocol: Protocol = "internal"  # that it came by, for the event log; internal: of this server's own
    patience_seconds: float = 0.0  # so long it waits for a full engine, where others are refused


def tenant_of(request: Request) -> str:
    return request.state.caller.principal.tenant
