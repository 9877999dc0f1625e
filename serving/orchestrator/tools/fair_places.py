"""Places that tenants share: none takes more than its bound, and whoever has the fewest is next."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from serving.errors import OverloadedError, RateLimitedError

RETRY_SECONDS = 5.0
MOST_WAITING = 32  # of one tenant


@dataclass(eq=False, slots=True)
class _Waiting:
    tenant: str
    place: asyncio.Future[None]


class FairPlaces:
    """Of one event loop."""

    def __init__(self, most: int, most_of_tenant: int, what: str) -> None:
        """`what` they are for, as errors say it, in the plural."""
        self._most = most
        self._most_of_tenant = min(most, most_of_tenant)
        self._what = what
        self._taken: Counter[str] = Counter()  # by tenant
        self._waiting: list[_Waiting] = []  # the first comer first

    @asynccontextmanager
    async def place(self, tenant: str, seconds: float) -> AsyncIterator[None]:
        """One for the tenant, waited for so long at most. Raises RateLimitedError where that is due to the tenant's own
        bound, OverloadedError where all are taken."""
        await self._take(tenant, seconds)
        try:
            yield
        finally:
            self._leave(tenant)

    async def _take(self, tenant: str, seconds: float) -> None:
        if sum(one.tenant == tenant for one in self._waiting) >= MOST_WAITING:
            raise RateLimitedError(
                f"this tenant has {self._taken[tenant]} {self._what} running, and {MOST_WAITING} more wait: as many as "
                "one may; ask again when some have ended",
                retry_after=RETRY_SECONDS,
                code="tenant_places",
            )
        waiting = _Waiting(tenant, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._hand_out()
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await waiting.place
        except BaseException as error:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
            elif not waiting.place.cancelled():  # it came at the same moment
                self._leave(tenant)
            if isinstance(error, TimeoutError):
                raise self._refusal(tenant, seconds) from None
            raise

    def _refusal(self, tenant: str, seconds: float) -> RateLimitedError | OverloadedError:
        own = self._taken[tenant]
        waited = f"no place came free in {max(0.0, seconds):.3g} s:"
        if own >= self._most_of_tenant:
            return RateLimitedError(
                f"{waited} this tenant has {own} {self._what} running, as many as one may",
                retry_after=RETRY_SECONDS,
                code="tenant_places",
            )
        return OverloadedError(f"{waited} {self._most} {self._what} are running", retry_after=RETRY_SECONDS)

    def _leave(self, tenant: str) -> None:
        self._taken[tenant] -= 1
        self._taken += Counter()  # forgets tenants that have none
        self._hand_out()

    def _hand_out(self) -> None:
        """To whoever has the fewest, the first comer of those."""
        while self._taken.total() < self._most:
            able = [one for one in self._waiting if self._taken[one.tenant] < self._most_of_tenant]
            if not able:
                return
            chosen = min(able, key=lambda one: self._taken[one.tenant])
            self._waiting.remove(chosen)
            if not chosen.place.done():
                self._taken[chosen.tenant] += 1
                chosen.place.set_result(None)
