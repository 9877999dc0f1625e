"""An engine that stands still amid its steps until something is asked of it, so that who asks is never too late."""

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from serving.engine.executor import Executor, PendingGuesses, PendingStep
from serving.engine.local import LocalEngine
from serving.engine.operation import Operation, OperationReport
from serving.engine.plan import StepPlan

PATIENCE = 180.0  # seconds; only a broken test waits that long


def held_steps(
    monkeypatch: pytest.MonkeyPatch, *, after: int = 4
) -> Callable[[LocalEngine, Operation], Awaitable[OperationReport]]:
    """From now on an engine stands still after so many steps; `await asked(engine, operation)` lets it go on once the
    operation waits for it."""
    dispatch, gate, begun = Executor.dispatch, threading.Event(), 0

    def held(self: Executor, plan: StepPlan) -> PendingStep | PendingGuesses:
        nonlocal begun
        begun += 1
        if begun > after:
            gate.wait(PATIENCE)
        return dispatch(self, plan)

    async def asked(engine: LocalEngine, operation: Operation) -> OperationReport:
        report = asyncio.create_task(engine.operate(operation))
        while not (engine._inbox or report.done()):
            await asyncio.sleep(0)
        gate.set()
        return await report

    monkeypatch.setattr(Executor, "dispatch", held)
    return asked
