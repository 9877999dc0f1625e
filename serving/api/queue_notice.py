"""Where a request stands in the queue, as comments in its stream: for clients that send `Weft-Queue: show`.

    : queue position=3 waited=1.2 predicted=4.0

Seconds waited, and predicted to be left. Comments, because every client of server-sent events skips what it does not
know as one, and an SDK that parses each event as a chunk does not stumble.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from starlette.requests import Request

from serving.api.service import StreamLimits
from serving.api.sse import HEARTBEAT
from serving.gateway.lease import Lease

HEADER = "weft-queue"
SHOW = "show"
EVERY_SECONDS = 1.0


class Waiting(Protocol):
    """A generation, or the newest of a turn's."""

    @property
    def lease(self) -> Lease | None: ...


def is_wanted(request: Request) -> bool:
    return request.headers.get(HEADER, "").lower() == SHOW


def with_notices(limits: StreamLimits) -> StreamLimits:
    """A silent stream is written to each second, and not only to keep it alive."""
    return replace(limits, heartbeat_seconds=min(EVERY_SECONDS, limits.heartbeat_seconds))


def notice_of(generation: Waiting) -> Callable[[], bytes]:
    """What is written into a silence: the place in the queue until the first token, and then what keeps it alive."""

    def write() -> bytes:
        lease = generation.lease
        if lease is None or not lease.is_waiting:
            return HEARTBEAT
        notice = lease.notice
        place = f"position={notice.position} waited={notice.waited_seconds:.1f}"
        return f": queue {place} predicted={notice.predicted_seconds:.1f}\n".encode()

    return write
