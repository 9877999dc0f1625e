"""The loop: plan, dispatch, collect, commit, with one step in flight.

    plan N+1 --> dispatch N+1 --> collect N --> commit N --> plan N+2 ...

Where sequences of step N+1 have grammars, only its forward pass is dispatched so early. Their masks depend on the
tokens of step N; they are computed once these are there, beside the forward pass, and then its draw is dispatched:

    plan N+1 --> dispatch N+1 --> collect N --> commit N --> masks N+1 --> draw N+1 --> plan N+2 ...

Step N+1 is on the device before step N's tokens are read, so what the host does for a step hides behind the device. A
decoding sequence's next token is fed back on the device; the host learns it one step later.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np

from serving.engine.constraint import Constraint
from serving.engine.limits import ExecutorLimits
from serving.engine.operation import EngineState
from serving.engine.plan import StepPlan, StepResult
from serving.engine.request import FinishReason, TokenEvent
from serving.engine.scheduler import Scheduler
from serving.engine.shards import ShardedScheduler
from serving.engine.tiers.page_tiers import PageTiers
from serving.engine.token_masks import TokenMasks
from serving.observability.logs import log_event

logger = logging.getLogger(__name__)

MOST_FORCED = 32  # tokens that a grammar feeds at once
GRAMMAR_FAILED = "the grammar cannot be followed any further"


class Pending(Protocol):
    def draw(self, masks: np.ndarray) -> None: ...

    def collect(self) -> StepResult: ...


@runtime_checkable
class PendingGuesses(Pending, Protocol):
    """A step with guesses; where it has constrained ranges, `draw` takes a mask for each of their draws."""

    def guessed(self) -> list[list[int]]: ...


class StepExecutor(Protocol):
    def dispatch(self, plan: StepPlan) -> Pending: ...


class SizedExecutor(StepExecutor, Protocol):
    """An executor that says what it was built for."""

    @property
    def limits(self) -> ExecutorLimits: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def programs_compiled(self) -> int: ...


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
        self,
        scheduler: Scheduler | ShardedScheduler,
        executor: StepExecutor,
        now: Callable[[], float] = time.perf_counter,
        tiers: PageTiers | None = None,
    ) -> None:
        """`tiers` are the scheduler's."""
        self.scheduler = scheduler
        self.executor = executor
        self.state = EngineState.RUNNING
        self.held = False  # for a moment, whatever the state
        self.weights = ""  # their version, named in what they draw
        self.namespace = ""  # of the pages, see `BlockPool`
        self.tiers = tiers
        self.stalled = False  # the last step had nothing to do: what is asked for is on its way from a lower tier
        self.clock = StepClock()
        self.masks = TokenMasks(now)
        self._now = now
        self.last_plan: StepPlan | None = None
        self._in_flight: InFlight | None = None
        self._collected_at = float("-inf")
        self._settled: list[TokenEvent] = []  # of steps that `settle` finished

    @property
    def idle(self) -> bool:
        """Whether a step would do nothing."""
        return self._in_flight is None and not self._settled and (self.halted or not self.scheduler.has_requests)

    @property
    def halted(self) -> bool:
        """No step begins, whoever waits for one."""
        return self.held or self.state != EngineState.RUNNING

    def now(self) -> float:
        return self._now()

    def step(self) -> list[TokenEvent]:
        """Starts the next step, finishes the one before it, and returns what that one did for its streams."""
        begin = self._now()
        plan = None if self.halted else self.scheduler.plan(begin)
        self.last_plan = plan or self.last_plan
        if self.tiers is not None:
            self.tiers.run_moves()
        events, self._settled = [*self._settled, *self.scheduler.take_ended()], []
        started = None if plan is None else InFlight(plan, self.executor.dispatch(plan), self._now())
        finished, self._in_flight = self._in_flight, started
        self.clock.host += self._now() - begin
        self.stalled = started is None and finished is None
        if finished is not None:
            events += self._finish(finished)
        if started is not None and started.plan.constrained:
            events += self._draw(started.plan, started.pending)
        return events

    def settle(self) -> None:
        """Finishes the step that is on the device, so that what it used may change. The next `step` returns what it did
        for its streams."""
        finished, self._in_flight = self._in_flight, None
        if finished is not None:
            self._settled += self._finish(finished)

    def _finish(self, finished: InFlight) -> list[TokenEvent]:
        begin = self._now()
        result = finished.pending.collect()
        collected = self._now()
        # The device began it when it was there, and the step before it done.
        seconds = collected - max(finished.dispatched_at, self._collected_at)
        self._collected_at = collected
        events = self.scheduler.commit(finished.plan, result, seconds)
        for event in events:
            if event.finish_reason is FinishReason.ERROR:
                log_event(
                    logger, "a stream failed", level=logging.ERROR, request_id=event.request_id, reason=event.error
                )
        self.clock.device_wait += collected - begin
        self.clock.host += self._now() - collected
        return [self._signed(event) for event in events] if self.weights else events

    def _signed(self, event: TokenEvent) -> TokenEvent:
        """A stream's first event and its last one name the weights that drew them."""
        if event.queue_seconds is None and event.finish_reason is None:
            return event
        return replace(event, weights=self.weights)

    def tend(self) -> None:
        """Goes on with copies between the tiers while no step begins."""
        if self.tiers is not None and not self.halted:
            self.scheduler.tend()
            self.tiers.run_moves()

    def expire(self) -> list[TokenEvent]:
        """The ends of streams whose deadline has come while no step begins."""
        self.scheduler.expire(self._now())
        return self.scheduler.take_ended()

    def _draw(self, plan: StepPlan, pending: Pending) -> list[TokenEvent]:
        """Dispatches the draw of a step under grammars. A stream whose grammar fails ends here."""
        owners = self.scheduler.constrained()
        constraints: list[Constraint | None] = []
        events: list[TokenEvent] = []
        for owner in owners:
            constraint = None if owner.finished else owner.constraint
            if constraint is not None:
                constraint.follow(owner.tokens, owner.num_prompt)
            constraints.append(constraint)
        if isinstance(pending, PendingGuesses):
            guesses = pending.guessed()
            masks = self.masks.of_guesses(owners, constraints, [guesses[i] for i in plan.constrained])
        else:
            masks = self.masks.of(constraints)
        pending.draw(masks)
        for owner, constraint in zip(owners, constraints, strict=True):
            if constraint is not None and owner.may_be_fed:
                owner.forced = constraint.forced(MOST_FORCED)
            if constraint is not None and constraint.failure is not None:
                event = self.scheduler.abort(owner.request_id, error=f"{GRAMMAR_FAILED}: {constraint.failure}")
                assert event is not None
                events.append(replace(event, error_param="grammar"))
        return events
