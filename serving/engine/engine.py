"""The loop: plan, dispatch, collect, commit, with one step in flight.

    plan N+1 --> dispatch N+1 --> collect N --> commit N --> plan N+2 ...

Step N+1 is on the device before step N's tokens are read, so what the host does for a step hides behind the device. A
decoding sequence's next token is fed back on the device; the host learns it one step later.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from serving.engine.plan import StepPlan, StepResult
from serving.engine.request import TokenEvent
from serving.engine.scheduler import Scheduler


class Pending(Protocol):
    def collect(self) -> StepResult: ...


class StepExecutor(Protocol):
    def dispatch(self, plan: StepPlan) -> Pending: ...


@dataclass(slots=True)
class StepClock:
    """Where a step's time goes, in seconds since the start."""

    host: float = 0.0  # planning, packing, dispatching, committing
    device_wait: float = 0.0  # blocked on the device


@dataclass(frozen=True, slots=True)
class InFlight:
    plan: StepPlan
    pending: Pending
    dispatched_at: float


class EngineLoop:
    """Owns the scheduler and the executor. Everything here runs on one thread."""

    def __init__(
        self, scheduler: Scheduler, executor: StepExecutor, now: Callable[[], float] = time.perf_counter
    ) -> None:
        self.scheduler = scheduler
        self.clock = StepClock()
        self._executor = executor
        self._now = now
        self._in_flight: InFlight | None = None
        self._collected_at = float("-inf")

    @property
    def idle(self) -> bool:
        return self._in_flight is None and not self.scheduler.has_requests

    def now(self) -> float:
        return self._now()

    def step(self) -> list[TokenEvent]:
        """Starts the next step, finishes the one before it, and returns what that one did for its streams."""
        begin = self._now()
        plan = self.scheduler.plan(begin)
        events = self.scheduler.take_ended()
        started = None if plan is None else InFlight(plan, self._executor.dispatch(plan), self._now())
        finished, self._in_flight = self._in_flight, started
        dispatched = self._now()
        if finished is None:
            self.clock.host += dispatched - begin
            return events
        result = finished.pending.collect()
        collected = self._now()
        # The device began it when it was there, and the step before it done.
        seconds = collected - max(finished.dispatched_at, self._collected_at)
        self._collected_at = collected
        events += self.scheduler.commit(finished.plan, result, seconds)
        self.clock.device_wait += collected - dispatched
        self.clock.host += self._now() - collected + dispatched - begin
        return events
