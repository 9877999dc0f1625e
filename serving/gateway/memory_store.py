"""Limits counted in this process: exact for one API process, and each its own where there are several."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from serving.gateway.limit_store import Demand, LimitName, Verdict
from serving.gateway.window import Slots, WindowState, forget_old, give_back, seconds_until, slot_of, state_of, take

_SWEEP_EVERY = 1024  # reservations


@dataclass(slots=True)
class _Tenant:
    requests: Slots = field(default_factory=dict)
    tokens: Slots = field(default_factory=dict)
    running: set[str] = field(default_factory=set)

    @property
    def is_idle(self) -> bool:
        return not (self.requests or self.tokens or self.running)


class MemoryStore:
    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._tenants: dict[str, _Tenant] = {}
        self._reservations = 0

    async def reserve(self, demand: Demand) -> Verdict:
        now = self._now()
        self._sweep(now)
        tenant = self._tenants.setdefault(demand.tenant, _Tenant())
        forget_old(tenant.requests, now)
        forget_old(tenant.tokens, now)
        refused_by, retry_after = _refusal(tenant, demand, now)
        if refused_by is None:
            if demand.limits.requests_per_minute is not None:
                take(tenant.requests, demand.requests, slot_of(now))
            if demand.limits.tokens_per_minute is not None:
                take(tenant.tokens, demand.tokens, slot_of(now))
            tenant.running.add(demand.lease_id)
        return Verdict(
            demand=demand,
            slot=slot_of(now),
            refused_by=refused_by,
            retry_after=retry_after,
            requests=_state(tenant.requests, demand.limits.requests_per_minute, now),
            tokens=_state(tenant.tokens, demand.limits.tokens_per_minute, now),
        )

    async def settle(self, verdict: Verdict, *, used_tokens: int, undo_request: bool = False) -> None:
        demand, now = verdict.demand, self._now()
        tenant = self._tenants.setdefault(demand.tenant, _Tenant())
        tenant.running.discard(demand.lease_id)
        if demand.limits.tokens_per_minute is not None:
            if used_tokens > demand.tokens:
                take(tenant.tokens, used_tokens - demand.tokens, slot_of(now))
            else:
                give_back(tenant.tokens, demand.tokens - used_tokens, verdict.slot)
        if undo_request and demand.limits.requests_per_minute is not None:
            give_back(tenant.requests, demand.requests, verdict.slot)

    async def keep(self, verdicts: list[Verdict]) -> None:
        """Nothing to do: what runs here ends with this process."""

    async def close(self) -> None:
        pass

    def _sweep(self, now: float) -> None:
        """Tenants may come from tokens, without bound: those that have been idle for a minute are forgotten."""
        self._reservations += 1
        if self._reservations % _SWEEP_EVERY:
            return
        for name, tenant in list(self._tenants.items()):
            forget_old(tenant.requests, now)
            forget_old(tenant.tokens, now)
            if tenant.is_idle:
                del self._tenants[name]


def _refusal(tenant: _Tenant, demand: Demand, now: float) -> tuple[LimitName | None, float | None]:
    limits = demand.limits
    if limits.concurrency is not None and len(tenant.running) >= limits.concurrency:
        return "concurrency", None
    if (limit := limits.requests_per_minute) is not None:
        wait = seconds_until(tenant.requests, limit, demand.requests, now)
        if wait > 0:
            return "requests_per_minute", wait
    if (limit := limits.tokens_per_minute) is not None:
        wait = seconds_until(tenant.tokens, limit, demand.tokens, now)
        if wait > 0:
            return "tokens_per_minute", wait
    return None, None


def _state(slots: Slots, limit: int | None, now: float) -> WindowState | None:
    return None if limit is None else state_of(slots, limit, now)
