"""Responses that are made in the background: tasks of this process, and their events for whoever reads them."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from serving.api.error_reply import stopping
from serving.api.responses.made import MadeResponse
from serving.api.responses.output import Told
from serving.errors import OverloadedError, RateLimitedError, WeftError
from serving.observability.logs import log_failure
from serving.sessions.conversations.records import Owner

MOST_RUNNING = 256  # of this process; each waits for its row like any other request
TENANT_SHARE = 0.25  # of those, that one tenant may have where there can be others
MOST_KEPT = 1024  # of those that have ended
RETRY_SECONDS = 5.0
KEPT_SECONDS = 600.0  # after the end, the events between; the response itself is in the store

logger = logging.getLogger(__name__)


class LiveResponse:
    def __init__(self, made: MadeResponse) -> None:
        self._made = made
        self._events: list[Told] = []
        self._more = asyncio.Event()
        self._ended_at: float | None = None
        self._is_broken_off = False
        self._task = asyncio.create_task(self._run())

    @property
    def owner(self) -> Owner:
        return self._made.owner

    @property
    def ended(self) -> bool:
        return self._ended_at is not None

    @property
    def told(self) -> int:
        """How many events there are."""
        return len(self._events)

    def ended_before(self, moment: float) -> bool:
        return self._ended_at is not None and self._ended_at <= moment

    async def cancel(self, why: WeftError | None = None) -> None:
        """Returns once it has ended. None: somebody has asked for it. Only the first who asks breaks it off: a second
        time would break off the writing of its end. That of one who leaves here goes on."""
        if not self._task.done() and not self._is_broken_off:
            self._is_broken_off = True
            self._made.failure = why
            # After its first step, which waits in the loop already: a task that never began would write no end.
            asyncio.get_running_loop().call_soon(self._task.cancel)
        await asyncio.wait([self._task])

    async def follow(self, after: int) -> AsyncGenerator[Told, None]:
        """The events with a higher number than `after`, to the end."""
        position = after + 1
        while True:
            more = self._more
            while position < len(self._events):
                yield self._events[position]
                position += 1
            if self.ended:
                return
            await more.wait()

    async def _run(self) -> None:
        try:
            async with aclosing(self._made.background()) as events:
                async for event in events:
                    self._add(event)
        except Exception as error:  # of the task itself: nobody else would see it
            log_failure(logger, "a response in the background failed", error)
            raise
        finally:
            self._ended_at = time.monotonic()
            self._wake()

    def _add(self, event: Told) -> None:
        self._events.append(event)
        self._wake()

    def _wake(self) -> None:
        self._more.set()
        self._more = asyncio.Event()


class LiveResponses:
    def __init__(self, *, one_tenant: bool = False, most: int = MOST_RUNNING) -> None:
        """`one_tenant`: nobody has to say who they are, so that there is nobody to leave places to."""
        self._live: dict[str, LiveResponse] = {}
        self._beginning: Counter[str] = Counter()  # by tenant
        self._most = most
        self._most_of_tenant = most if one_tenant else max(1, int(most * TENANT_SHARE))

    async def start(self, made: MadeResponse) -> Mapping[str, object]:
        """The response as it is now: queued. Raises RateLimitedError, OverloadedError, and what MadeResponse.begin
        raises."""
        self.drop_ended(KEPT_SECONDS)
        tenant = made.owner.tenant
        self._check_room(tenant)
        self._beginning[tenant] += 1
        try:
            await made.begin(queued=True)
        finally:
            self._beginning[tenant] -= 1
            self._beginning += Counter()  # forgets tenants that begin nothing
        told = made.response
        self._live[made.id] = LiveResponse(made)
        return told

    def _check_room(self, tenant: str) -> None:
        running = Counter(live.owner.tenant for live in self._live.values() if not live.ended) + self._beginning
        if running.total() >= self._most:
            raise OverloadedError(
                "too many responses are made in the background", retry_after=RETRY_SECONDS, code="too_many_responses"
            )
        if running[tenant] >= self._most_of_tenant:
            raise RateLimitedError(
                f"this tenant makes {running[tenant]} responses in the background, as many as one may: wait for the "
                "end of one, or cancel one",
                retry_after=RETRY_SECONDS,
                code="background_share",
            )

    def get(self, response_id: str) -> LiveResponse | None:
        """None where this process does not make it, or not any more."""
        return self._live.get(response_id)

    async def cancel(self, response_id: str) -> None:
        """Returns once it has ended; at once where this process does not make it."""
        live = self.get(response_id)
        if live is not None:
            await live.cancel()

    async def erase(self, tenant: str, user: str | None, dry_run: bool) -> Mapping[str, int]:
        """What there is of a user, or of a whole tenant; unless it is only looked at, it is cancelled and gone."""
        found = {
            name: live
            for name, live in self._live.items()
            if live.owner.tenant == tenant and user in (None, live.owner.user)
        }
        for name, live in () if dry_run else found.items():
            await live.cancel()
            self._live.pop(name, None)
        return {"responses": len(found)}

    def drop_ended(self, kept_seconds: float = 0.0) -> None:
        """The events of those that ended longer ago, and of the oldest where they are too many."""
        moment = time.monotonic() - kept_seconds
        self._live = {name: live for name, live in self._live.items() if not live.ended_before(moment)}
        ended = [name for name, live in self._live.items() if live.ended]
        for name in ended[: max(0, len(ended) - MOST_KEPT)]:
            del self._live[name]

    async def close(self) -> None:
        await asyncio.gather(*(live.cancel(stopping()) for live in self._live.values()))
