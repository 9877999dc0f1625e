"""What each operation does to the engine in this process.

A handler is a coroutine on the caller's event loop: what is slow and touches nothing of the engine it does there (in a
thread of its own where it blocks), and what touches scheduler or executor inside `LiveEngine.on_loop`, which runs
between two steps. Raises WeftError, before anything is changed, where it cannot be done.
"""

import asyncio
import dataclasses
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from serving.engine.adapter_messages import ListAdapters, LoadAdapter, PinAdapter, UnloadAdapter
from serving.engine.adapter_operations import list_adapters, load_adapter, pin_adapter, unload_adapter
from serving.engine.engine import EngineLoop
from serving.engine.live_engine import LiveEngine, report_of
from serving.engine.operation import (
    EngineState,
    LoadWeights,
    Operation,
    OperationReport,
    Pause,
    Resume,
    Sleep,
    StartTrace,
    StopTrace,
    Wake,
)
from serving.engine.pin_messages import ListPins, PinPrefix, UnpinPrefix
from serving.engine.pin_operations import list_pins, pin_prefix, unpin_prefix
from serving.engine.recording import start_trace, stop_trace
from serving.engine.sleep import sleep, wake
from serving.engine.weight_update import load_weights
from serving.errors import RequestError
from serving.observability.logs import log_event

log = logging.getLogger(__name__)

_under_way: set[asyncio.Task[OperationReport]] = set()  # an event loop alone does not keep its tasks

Handler = Callable[[Any, LiveEngine], Awaitable[OperationReport]]


async def perform(operation: Operation, engine: LiveEngine) -> OperationReport:
    """Carried to its end where the caller leaves. Cut off, it could leave steps held for ever, or reading weights on a
    thread beside the steps and beside the next operation; and clients that do not wait as long as an engine takes to
    wake would each begin that anew."""
    task = asyncio.create_task(_perform(operation, engine))
    _under_way.add(task)
    task.add_done_callback(_end)
    return await asyncio.shield(task)


def _end(task: asyncio.Task[OperationReport]) -> None:
    _under_way.discard(task)
    if not task.cancelled():
        task.exception()  # heard, also where nobody waits any more


async def _perform(operation: Operation, engine: LiveEngine) -> OperationReport:
    begin = time.perf_counter()
    report = await HANDLERS[type(operation)](operation, engine)
    report = dataclasses.replace(report, seconds=time.perf_counter() - begin)
    log_event(
        log, "an operation is done", operation=type(operation).__name__, state=report.state, seconds=report.seconds
    )
    return report


async def _pause(_: Pause, engine: LiveEngine) -> OperationReport:
    return await engine.on_loop(lambda loop: _set_state(loop, EngineState.PAUSED))


async def _resume(_: Resume, engine: LiveEngine) -> OperationReport:
    return await engine.on_loop(lambda loop: _set_state(loop, EngineState.RUNNING))


def _set_state(loop: EngineLoop, state: EngineState) -> OperationReport:
    if loop.state == EngineState.ASLEEP:
        raise RequestError("the engine is asleep: wake it first", code="engine_asleep")
    loop.state = state
    return report_of(loop)


HANDLERS: Mapping[type[Operation], Handler] = {
    Pause: _pause,
    Resume: _resume,
    Sleep: sleep,
    Wake: wake,
    LoadWeights: load_weights,
    PinPrefix: pin_prefix,
    UnpinPrefix: unpin_prefix,
    ListPins: list_pins,
    StartTrace: start_trace,
    StopTrace: stop_trace,
    LoadAdapter: load_adapter,
    UnloadAdapter: unload_adapter,
    PinAdapter: pin_adapter,
    ListAdapters: list_adapters,
}
