"""Records the steps of an engine that runs: an executor around the engine's own, for the time of a trace.

A trace begins with no page and no row in use: streams that run are computed again, so that whoever replays it has seen
all that its steps read. Encoding and writing are done by a thread of their own; where it cannot keep up, or the file is
full, the trace ends there, and what was written stays good.
"""

import queue
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from serving.config import Deployment
from serving.engine.cluster_wire import Masks
from serving.engine.engine import EngineLoop, Pending, PendingGuesses, StepExecutor
from serving.engine.limits import ExecutorLimits
from serving.engine.live_engine import LiveEngine, report_of
from serving.engine.operation import OperationReport, StartTrace, StopTrace
from serving.engine.plan import StepPlan, StepResult
from serving.engine.plan_wire import PlanSender
from serving.engine.step_trace import SUFFIX, TracedResult, TraceFile, TraceHeader, digest_of_result
from serving.errors import NotFoundError, RequestError, UnsupportedError

_MOST_WAITING = 4096  # messages for the writer
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_OF_THE_MACHINE = ("checkpoint", "chat_template", "architecture", "compilation_cache", "crash_reports", "cache_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFolder:
    """Where traces may be written, and what stands at their head."""

    path: Path
    most_bytes: int
    model_name: str
    tables: Mapping[str, Mapping[str, Any]]
    config: Mapping[str, Any]

    def file(self, name: str, weights: str) -> TraceFile:
        """Raises RequestError."""
        if not _NAME.fullmatch(name):
            raise RequestError(
                "name must be letters, digits and _ . -, of a file in operations.traces",
                param="name",
                code="invalid_value",
            )
        header = TraceHeader(
            model_name=self.model_name,
            weights=weights,
            began_at=time.time(),
            tables={table: dict(values) for table, values in self.tables.items()},
            config=dict(self.config),
        )
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            return TraceFile(self.path / f"{name}{SUFFIX}", header, self.most_bytes)
        except FileExistsError:
            raise RequestError(f"there is a trace {name!r} already", param="name", code="trace_exists") from None
        except OSError as error:
            raise RequestError(f"the trace cannot be written to {self.path}: {error.strerror}", param="name") from error


def trace_folder(deployment: Deployment, limits: ExecutorLimits) -> TraceFolder | None:
    """None where the deployment names none."""
    operations = deployment.operations
    if operations.traces is None:
        return None
    tables = {
        name: {key: value for key, value in _plain(getattr(deployment, name)).items() if key not in _OF_THE_MACHINE}
        for name in ("model", "engine", "mesh", "speculation")
    }
    tables["engine"] |= {
        "num_pages": limits.num_pages * limits.shards,
        "max_model_len": limits.max_model_len,
        "decode_rounds": limits.decode_rounds,
        "token_buckets": [bucket * limits.shards for bucket in limits.token_buckets],
    }
    config = msgspec.json.decode((deployment.model.checkpoint / "config.json").read_bytes())
    return TraceFolder(
        path=operations.traces,
        most_bytes=operations.trace_bytes,
        model_name=deployment.name,
        tables=tables,
        config=config,
    )


async def start_trace(operation: StartTrace, engine: LiveEngine) -> OperationReport:
    folder = engine.trace_folder
    if folder is None:
        raise UnsupportedError("operations.traces names no folder for step traces", param="operation")

    def start(loop: EngineLoop) -> OperationReport:
        if isinstance(loop.executor, RecordingExecutor):
            raise RequestError("a trace is being recorded already: stop it first", code="trace_open")
        if loop.tiers is not None:
            raise UnsupportedError(
                "steps cannot be traced with tiers of the prefix cache below the device: their pages come from outside "
                "of the steps",
                param="operation",
            )
        file = folder.file(operation.name, loop.weights)
        loop.settle()
        loop.scheduler.forget_pages(loop.namespace)
        loop.executor = RecordingExecutor(loop.executor, file)
        return report_of(loop, trace_steps=0, trace_bytes=file.bytes)

    return await engine.on_loop(start)


async def stop_trace(_: StopTrace, engine: LiveEngine) -> OperationReport:
    def stop(loop: EngineLoop) -> OperationReport:
        recording = loop.executor
        if not isinstance(recording, RecordingExecutor):
            raise NotFoundError("no trace is being recorded", code="no_trace")
        loop.settle()
        loop.executor = recording.inner
        recording.end("")
        return report_of(
            loop, trace_steps=recording.steps, trace_bytes=recording.file.bytes, trace_ended=recording.ended or None
        )

    return await engine.on_loop(stop)


class RecordingExecutor:
    """`ended` says why the trace ended before it was stopped."""

    def __init__(self, inner: StepExecutor, file: TraceFile) -> None:
        self.inner = inner
        self.file = file
        self.steps = 0
        self.ended = ""
        self._waiting: queue.SimpleQueue[StepPlan | Masks | TracedResult | None] = queue.SimpleQueue()
        self._collected_at = float("-inf")
        self._writer: threading.Thread | None = threading.Thread(target=self._write, name="step-trace", daemon=True)
        self._writer.start()

    def dispatch(self, plan: StepPlan) -> Pending:
        self.put(plan)
        self.steps += 0 if self.ended else 1
        pending = self.inner.dispatch(plan)
        kind = _RecordedGuesses if isinstance(pending, PendingGuesses) else _RecordedStep
        return kind(self, pending, plan.step, time.perf_counter())

    def collected(self, step: int, result: StepResult, dispatched_at: float) -> None:
        now = time.perf_counter()
        self.put(TracedResult(step, digest_of_result(result), now - max(dispatched_at, self._collected_at)))
        self._collected_at = now

    def put(self, message: StepPlan | Masks | TracedResult) -> None:
        if self.ended:
            return
        if self.file.full:
            self.end("the file is full")
        elif self._waiting.qsize() > _MOST_WAITING:
            self.end("the disk is slower than the steps")
        else:
            self._waiting.put(message)

    def end(self, why: str) -> None:
        """Writes what waits, and closes the file."""
        if self._writer is not None:
            self._waiting.put(None)
            self._writer.join()
            self._writer = None
            self.ended = self.ended or why or ("the file is full" if self.file.full else "")

    def _write(self) -> None:
        sender = PlanSender()
        try:
            while (message := self._waiting.get()) is not None:
                self.file.write(sender.change(message) if isinstance(message, StepPlan) else message)
        except OSError as error:
            self.file.full = True
            self.ended = f"the disk failed: {error.strerror}"
        finally:
            self.file.close()


@dataclass(frozen=True, slots=True)
class _RecordedStep:
    recording: RecordingExecutor
    pending: Pending
    step: int
    dispatched_at: float

    def draw(self, masks: np.ndarray) -> None:
        self.recording.put(Masks.of(masks))
        self.pending.draw(masks)

    def collect(self) -> StepResult:
        result = self.pending.collect()
        self.recording.collected(self.step, result, self.dispatched_at)
        return result


@dataclass(frozen=True, slots=True)
class _RecordedGuesses(_RecordedStep):
    def guessed(self) -> list[list[int]]:
        assert isinstance(self.pending, PendingGuesses)
        return self.pending.guessed()


def end_trace(loop: EngineLoop, why: str) -> None:
    """Ends the trace that is being recorded, if there is one: what comes now is not a part of it."""
    if isinstance(loop.executor, RecordingExecutor):
        loop.executor.end(why)


def _plain(table: Any) -> dict[str, Any]:
    return msgspec.to_builtins(table, enc_hook=str)
