"""From SIGTERM to the end: nobody new is admitted, what runs may end, and what is left at the deadline is handed over.

readiness says no, new requests get 503 with Retry-After, connections close after their answer
what runs ends within the time it has
at the deadline durable streams are left to another process that sees their log; the others end with an error
"""

import asyncio
import logging
import time
from collections.abc import Callable

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.api.service import Service
from serving.events.event_types import ServerDrained
from serving.observability.logs import log_event

LOOK_SECONDS = 0.05  # between looks whether all has ended

logger = logging.getLogger(__name__)


class Drain:
    def __init__(self, service: Service, seconds: float) -> None:
        self._service = service
        self.seconds = seconds
        self.begun = False

    async def run(self, is_idle: Callable[[], bool]) -> None:
        """Until `is_idle` and nothing is generated, or until the deadline has passed and streams were handed over."""
        service, begin, opened = self._service, time.monotonic(), self._service.slots.open
        deadline = begin + self.seconds
        self.begun = True
        service.gateway.drain()
        service.durable.retire()
        log_event(logger, "draining", open_streams=opened, seconds=self.seconds)
        while time.monotonic() < deadline:
            if service.slots.open == 0 and is_idle():
                break
            await asyncio.sleep(LOOK_SECONDS)
        left = service.slots.open
        log_event(logger, "drained", open_streams=left)
        if service.events.records(ServerDrained.group):
            seconds = time.monotonic() - begin
            service.events.add(ServerDrained(open_streams=opened, left_streams=left, seconds=seconds))
        await service.durable.hand_over()

    def closing(self, app: ASGIApp) -> ASGIApp:
        """The application whose answers, once this has begun, are the last of their connections."""

        async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
            async def closing_send(message: Message) -> None:
                if self.begun and message["type"] == "http.response.start":
                    MutableHeaders(scope=message)["connection"] = "close"
                await send(message)

            await app(scope, receive, closing_send if scope["type"] == "http" else send)

        return wrapped
