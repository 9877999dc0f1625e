"""How long a request would wait for its first token, from what waits now and how fast that has been going.

Two things make a request wait, and each has its own measure:

    rows      every row of the batch is taken (or no pages are free): streams per second that get one
    prefill   more prompt tokens wait than a step takes: prompt tokens per second that are computed

Both are measured only while they are what holds requests up (`drain_meter.py`), so both are the rates of a full
server. What predictions have been wrong by is learnt (`prediction_error.py`), so that nearly all who are let in, and
not half, wait no longer than was said. Prompt tokens count less for a tenant whose prompts are often found in the
prefix cache, by its share so far. A class waits for what has come before it in its own class and in those above it.
Seconds, tokens.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from serving.engine.client import EngineInfo, EngineStats
from serving.engine.request import Priority
from serving.gateway.drain_meter import DrainMeter
from serving.gateway.lag import Lag
from serving.gateway.prediction_error import PredictionError

_RANK = {Priority.INTERACTIVE: 0, Priority.STANDARD: 1, Priority.BATCH: 2}
_CACHE_MEMORY = 0.2  # weight of a tenant's newest prompt in its share of cached tokens
_MOST_TENANTS = 10_000
_UNKNOWN_ROUNDS = 2  # while no rate is known, so many full batches may wait


@dataclass(slots=True)
class Place:
    """One request's in the queue, or among those that run."""

    priority: Priority
    choices: int
    tokens: float  # of its prompts, less those that are likely cached
    arrived: int  # counted
    joined: float  # seconds, on the capacity's clock
    uncorrected: float  # seconds to its first token, as the rates alone had it when it joined
    started: bool = False


class Capacity:
    def __init__(self, now: Callable[[], float] = time.monotonic, lag: Lag | None = None) -> None:
        self._now = now
        self._lag = lag or Lag(now)
        self._updated = now()
        self._info: EngineInfo | None = None
        self._stats: EngineStats | None = None
        self._waiting: dict[int, Place] = {}
        self.preparing = 0  # requests whose prompts are being rendered and encoded: they are about to join
        self._running = 0  # choices
        self._arrivals = 0
        self._rows = DrainMeter()
        self._prefill = DrainMeter()
        self._error = PredictionError()
        self._cached_share: dict[str, float] = {}

    @property
    def knows_engine(self) -> bool:
        return self._info is not None

    def meet(self, info: EngineInfo) -> None:
        self._info = info

    def see(self, stats: EngineStats | None) -> None:
        """The engine's latest numbers, which tell of other API processes too; None where it does not answer."""
        self._advance()
        self._stats = stats

    def join(self, priority: Priority, tenant: str, prompt_tokens: int, choices: int) -> Place:
        self._advance()
        self._arrivals += 1
        tokens = self._uncached(tenant, prompt_tokens)
        uncorrected = self._from_rates(self._before(priority), tokens, choices)
        place = Place(priority, choices, tokens, self._arrivals, self._updated, uncorrected)
        self._waiting[place.arrived] = place
        return place

    def aside(self, priority: Priority) -> Place:
        """A place of work that is not the batch's: nobody waits behind it."""
        return Place(priority, 0, 0.0, 0, self._updated, 0.0)

    def start(self, place: Place, tenant: str, prompt_tokens: int, cached_tokens: int) -> None:
        """Its first token came."""
        self._advance()
        if self._rows_are_full:
            self._rows.add(place.choices)
        elif self._prompts_are_many:
            self._prefill.add(place.tokens)
        self._waiting.pop(place.arrived, None)
        place.started = True
        self._running += place.choices
        self._error.learn(place.uncorrected, self._updated - place.joined)
        self._learn_share(tenant, prompt_tokens, cached_tokens)

    def leave(self, place: Place) -> None:
        self._advance()
        self._waiting.pop(place.arrived, None)
        if place.started:
            self._running -= place.choices

    def position(self, place: Place) -> int:
        """Requests that go before it; 0 where it is next, or runs."""
        if place.started:
            return 0
        ahead = (_RANK[place.priority], place.arrived)
        return sum((_RANK[other.priority], other.arrived) < ahead for other in self._waiting.values())

    def wait_of(self, place: Place) -> float:
        """Seconds that are left to its first token, as predicted now."""
        if place.started:
            return 0.0
        ahead = (_RANK[place.priority], place.arrived)
        before = [other for other in self._waiting.values() if (_RANK[other.priority], other.arrived) < ahead]
        return self._predicted(before, place.tokens, place.choices)

    def predict(self, priority: Priority, tenant: str = "", prompt_tokens: int = 0, choices: int = 1) -> float:
        """Seconds to the first token of a request that came now."""
        self._advance()
        return self._predicted(self._before(priority), self._uncached(tenant, prompt_tokens), choices)

    @property
    def streams_per_second(self) -> float | None:
        return self._rows.rate

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def _before(self, priority: Priority) -> list[Place]:
        """What goes before a request that comes now."""
        return [other for other in self._waiting.values() if _RANK[other.priority] <= _RANK[priority]]

    def _predicted(self, before: list[Place], tokens: float, choices: int) -> float:
        waits = self._error.corrected(self._from_rates(before, tokens, choices))
        # Who would wait for nothing more is let in, however long it lay unread.
        return waits + self._lag.of_timers + (self._lag.unread if waits else 0.0)

    def _from_rates(self, before: list[Place], tokens: float, choices: int) -> float:
        if self._info is None:
            return 0.0
        tokens_before = sum(place.tokens for place in before)
        seconds = 0.0
        rate = self._prefill.rate
        if tokens_before >= self._info.max_num_batched_tokens and rate is not None:
            seconds = (tokens_before + tokens) / rate
        if self._rows_are_full:
            streams = sum(place.choices for place in before) + self.preparing + choices
            rate = self._rows.rate
            if rate is not None:
                seconds = max(seconds, streams / rate)
            elif streams > _UNKNOWN_ROUNDS * self._info.max_num_seqs:
                seconds = float("inf")
        return seconds

    @property
    def _rows_are_full(self) -> bool:
        if self._info is None:
            return False
        if self._running >= self._info.max_num_seqs:
            return True
        stats = self._stats
        return stats is not None and (stats.running >= self._info.max_num_seqs or stats.waiting > 0)

    @property
    def _prompts_are_many(self) -> bool:
        """More tokens wait than a step takes, in as many requests as have rows at once: what a thousand prompts of one
        token wait for is not that they are computed."""
        if self._info is None:
            return False
        first = islice(self._waiting.values(), self._info.max_num_seqs)
        return sum(place.tokens for place in first) >= self._info.max_num_batched_tokens

    def _advance(self) -> None:
        now = self._now()
        seconds, self._updated = now - self._updated, now
        if seconds <= 0:
            return
        rows = bool(self._waiting) and self._rows_are_full
        prompts = not rows and self._prompts_are_many
        for meter, runs in ((self._rows, rows), (self._prefill, prompts)):
            (meter.run if runs else meter.rest)(seconds)

    def _uncached(self, tenant: str, prompt_tokens: int) -> float:
        return max(1.0, prompt_tokens * (1.0 - self._cached_share.get(tenant, 0.0)))

    def _learn_share(self, tenant: str, prompt_tokens: int, cached_tokens: int) -> None:
        if not prompt_tokens:
            return
        share = self._cached_share.get(tenant, 0.0)
        if tenant not in self._cached_share and len(self._cached_share) >= _MOST_TENANTS:
            self._cached_share.pop(next(iter(self._cached_share)))
        self._cached_share[tenant] = share + _CACHE_MEMORY * (cached_tokens / prompt_tokens - share)
