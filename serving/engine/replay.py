"""Runs the steps of a trace on an executor: the same tokens where the weights are the same, and a time for each step.

As the engine's loop and a follower do, each step is on the device before the one before it is waited for.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from serving.config import Deployment, EngineConfig, MeshConfig, ModelConfig
from serving.engine.cluster_wire import Masks
from serving.engine.engine import Pending, StepExecutor
from serving.engine.plan import StepPlan
from serving.engine.plan_wire import PlanChange, PlanReceiver
from serving.engine.step_trace import Record, TracedResult, TraceHeader, digest_of_result
from serving.errors import RequestError, UnsupportedError
from serving.settings.speculation import SpeculationConfig

StepKind = Literal["prefill", "mixed", "decode"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedStep:
    number: int
    kind: StepKind
    tokens: int  # computed: of a step of several rounds, in its first one
    sequences: int
    rounds: int
    seconds: float  # here
    recorded_seconds: float | None  # there; None: the trace ends before its result
    same_tokens: bool | None  # as were drawn there


def deployment_of(header: TraceHeader, checkpoint: Path) -> Deployment:
    """The deployment that was traced, as far as its programs go, over `checkpoint`. Raises RequestError and
    UnsupportedError."""

    def table(kind: type, name: str, **more: Any) -> Any:
        return msgspec.convert(header.tables[name] | more, kind, dec_hook=lambda kind, value: kind(value))

    if header.tables.get("speculation", {}).get("kind") in ("draft", "eagle3"):
        raise UnsupportedError(
            "the trace has guesses of a draft model or an EAGLE-3 head, which a replay has not", param="trace"
        )
    try:
        return Deployment(
            name=header.model_name,
            model=table(ModelConfig, "model", checkpoint=str(checkpoint)),
            engine=table(EngineConfig, "engine"),
            mesh=table(MeshConfig, "mesh"),
            speculation=table(SpeculationConfig, "speculation"),
        )
    except (msgspec.ValidationError, KeyError) as error:
        raise RequestError(f"the trace's header is damaged: {error}", param="trace") from error


def replay(
    executor: StepExecutor, records: Iterable[Record], now: Callable[[], float] = time.perf_counter
) -> list[ReplayedStep]:
    """Raises RequestError where the records are not in the order of a trace, UnsupportedError for what a replay has
    not got, EngineError for a plan that is not what was recorded."""
    receiver, running = PlanReceiver(), _Running(now)
    recorded: dict[int, TracedResult] = {}
    for record in records:
        match record:
            case PlanChange():
                plan = receiver.plan(record)
                if any(admission.adapter for admission in plan.admissions):
                    raise UnsupportedError("the trace has streams with adapters, which a replay has not", param="trace")
                running.start(plan, executor.dispatch(plan))
            case Masks():
                running.draw(record)
            case TracedResult():
                recorded[record.step] = record
    running.finish()
    return [_judged(plan, digest, seconds, recorded.get(plan.step)) for plan, digest, seconds in running.done]


class _Running:
    """The step on the device, and what came of those before it."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.done: list[tuple[StepPlan, int, float]] = []  # each with its digest, and its seconds
        self._now = now
        self._step: tuple[StepPlan, Pending, float] | None = None
        self._undrawn = False
        self._collected_at = float("-inf")

    def start(self, plan: StepPlan, pending: Pending) -> None:
        before, self._step = self._step, (plan, pending, self._now())
        self._undrawn = bool(plan.constrained)
        self._collect(before)

    def draw(self, masks: Masks) -> None:
        if self._step is None or not self._undrawn:
            raise RequestError("the trace has masks for no step", param="trace")
        self._undrawn = False
        self._step[1].draw(masks.array())

    def finish(self) -> None:
        """A last step whose masks were not written any more is left out."""
        if not self._undrawn:
            self._collect(self._step)
        self._step = None

    def _collect(self, step: tuple[StepPlan, Pending, float] | None) -> None:
        if step is None:
            return
        plan, pending, dispatched_at = step
        digest = digest_of_result(pending.collect())
        now = self._now()
        self.done.append((plan, digest, now - max(dispatched_at, self._collected_at)))
        self._collected_at = now


def _judged(plan: StepPlan, digest: int, seconds: float, recorded: TracedResult | None) -> ReplayedStep:
    prefills = len(plan.ranges) - plan.num_decode
    return ReplayedStep(
        number=plan.step,
        kind="decode" if not prefills else "mixed" if plan.num_decode else "prefill",
        tokens=plan.num_tokens,
        sequences=len(plan.ranges),
        rounds=plan.rounds,
        seconds=seconds,
        recorded_seconds=None if recorded is None else recorded.seconds,
        same_tokens=None if recorded is None else recorded.digest == digest,
    )
