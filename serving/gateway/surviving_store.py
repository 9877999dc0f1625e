"""A store of limits that may be lost: what then happens is the deployment's choice, and it is told.

refuse   requests of limited tenants get 503 until it answers again: no tenant takes more than its own
local    each process counts by itself: nobody is refused for it, and N processes let N times as much through
"""

import logging
import time
from collections.abc import Callable

from serving.access import StoreFailure
from serving.errors import OverloadedError
from serving.gateway.limit_store import Demand, LimitStore, StoreFailedError, Verdict
from serving.gateway.memory_store import MemoryStore
from serving.observability.logs import log_event

AGAIN_SECONDS = 1.0  # after a failure, before the store is asked again: nobody waits for it in between

logger = logging.getLogger(__name__)


class SurvivingStore:
    """`on_failure` is called for each demand or settlement that the store did not take."""

    def __init__(
        self,
        store: LimitStore,
        when_it_fails: StoreFailure,
        *,
        on_failure: Callable[[], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._policy = when_it_fails
        self._local = MemoryStore(now)
        self._taken_locally: set[str] = set()  # lease ids
        self._on_failure = on_failure
        self._now = now
        self._failed_at: float | None = None

    @property
    def is_up(self) -> bool:
        return self._failed_at is None

    async def reserve(self, demand: Demand) -> Verdict:
        """Raises OverloadedError where the store is lost and the deployment says to refuse."""
        if self._may_ask:
            try:
                verdict = await self._store.reserve(demand)
            except StoreFailedError as error:
                self._failed(error)
            else:
                self._answered()
                return verdict
        else:
            self._on_failure()
        if self._policy == "refuse":
            raise OverloadedError(
                "limits cannot be counted now, because their store does not answer",
                retry_after=AGAIN_SECONDS,
                code="limits_unavailable",
            )
        verdict = await self._local.reserve(demand)
        if verdict.refused_by is None:
            self._taken_locally.add(demand.lease_id)
        return verdict

    async def settle(self, verdict: Verdict, *, used_tokens: int, undo_request: bool = False) -> None:
        """Never raises: a settlement that is lost leaves what was reserved counted until its minute is over."""
        store = self._local if verdict.demand.lease_id in self._taken_locally else self._store
        self._taken_locally.discard(verdict.demand.lease_id)
        if store is self._store and not self._may_ask:
            self._on_failure()
            return
        try:
            await store.settle(verdict, used_tokens=used_tokens, undo_request=undo_request)
        except StoreFailedError as error:
            self._failed(error)

    async def keep(self, verdicts: list[Verdict]) -> None:
        theirs = [verdict for verdict in verdicts if verdict.demand.lease_id not in self._taken_locally]
        if not theirs or not self._may_ask:
            return
        try:
            await self._store.keep(theirs)
        except StoreFailedError as error:
            self._failed(error)

    async def close(self) -> None:
        await self._store.close()

    @property
    def _may_ask(self) -> bool:
        return self._failed_at is None or self._now() - self._failed_at >= AGAIN_SECONDS

    def _failed(self, error: StoreFailedError) -> None:
        self._on_failure()
        if self._failed_at is None:
            log_event(
                logger, "limit store lost", level=logging.ERROR, reason=str(error), requests_are=_DONE[self._policy]
            )
        self._failed_at = self._now()

    def _answered(self) -> None:
        if self._failed_at is not None:
            log_event(logger, "limit store back")
        self._failed_at = None


_DONE = {"refuse": "refused", "local": "counted in this process"}
