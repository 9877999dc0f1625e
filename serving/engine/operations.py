"""What each operation does to the engine in this process.

A handler is a coroutine on the caller's event loop: what is slow and touches nothing of the engine it does there (in a
thread of its own where it blocks), and what touches scheduler or executor inside `LiveEngine.on_loop`, which runs
between two steps. Raises WeftError, before anything is changed, where it cannot be done.
"""

import dataclasses
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeVar

from serving.engine.engine import EngineLoop
from serving.engine.operation import EngineState, Operation, OperationReport, Pause, Resume

T = TypeVar("T")


class LiveEngine(Protocol):
    """An engine whose loop runs on another thread."""

    async def on_loop(self, work: Callable[[EngineLoop], T]) -> T:
        """What `work` returns or raises, on the loop's thread between two steps; one step may be on the device."""
        ...


Handler = Callable[[Any, LiveEngine], Awaitable[OperationReport]]


async def perform(operation: Operation, engine: LiveEngine) -> OperationReport:
    begin = time.perf_counter()
    report = await HANDLERS[type(operation)](operation, engine)
    return dataclasses.replace(report, seconds=time.perf_counter() - begin)


async def _pause(_: Pause, engine: LiveEngine) -> OperationReport:
    return await engine.on_loop(lambda loop: _set_state(loop, EngineState.PAUSED))


async def _resume(_: Resume, engine: LiveEngine) -> OperationReport:
    return await engine.on_loop(lambda loop: _set_state(loop, EngineState.RUNNING))


def _set_state(loop: EngineLoop, state: EngineState) -> OperationReport:
    loop.state = state
    stats = loop.scheduler.stats
    return OperationReport(state=state, open_streams=stats.running + stats.waiting)


HANDLERS: Mapping[type[Operation], Handler] = {Pause: _pause, Resume: _resume}
