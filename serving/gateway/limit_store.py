"""Where a tenant's limits are counted: in this process (`memory_store.py`), or in Redis for many (`redis_store.py`)."""

from dataclasses import dataclass
from typing import Literal, Protocol

from serving.access import TierConfig
from serving.gateway.window import WindowState

LimitName = Literal["requests_per_minute", "tokens_per_minute", "concurrency"]


class StoreFailedError(Exception):
    """The store does not answer, or not in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What a request would take of its tenant's limits. `tokens` is at most the limit on them."""

    tenant: str
    limits: TierConfig
    lease_id: str
    requests: int = 1
    tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """`refused_by` is None where all was taken; else nothing was."""

    demand: Demand
    slot: int  # of the window, in which it was taken
    refused_by: LimitName | None = None
    retry_after: float | None = None  # seconds; None where the store cannot know: a running request has to end
    requests: WindowState | None = None
    tokens: WindowState | None = None


class LimitStore(Protocol):
    """Every method raises StoreFailedError, and none leaves a demand half taken."""

    async def reserve(self, demand: Demand) -> Verdict: ...

    async def settle(self, verdict: Verdict, *, used_tokens: int, undo_request: bool = False) -> None:
        """Ends a reservation: what it took beyond `used_tokens` is given back, what it used beyond is taken now.
        `undo_request`: it counts no request either."""
        ...

    async def keep(self, verdicts: list[Verdict]) -> None:
        """Says that these are still running."""
        ...

    async def close(self) -> None: ...


def is_limited(limits: TierConfig) -> bool:
    return any(
        limit is not None for limit in (limits.requests_per_minute, limits.tokens_per_minute, limits.concurrency)
    )
