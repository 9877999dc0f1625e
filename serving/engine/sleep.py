"""Sleep: the engine gives its memory back and keeps its programs. Wake: it takes the memory, and goes on.

Streams that are open wait. They lose their pages, are computed again from their tokens once the engine is awake, and go
on as they would have.
"""

import asyncio
import logging

from serving.engine.engine import EngineLoop
from serving.engine.live_engine import LiveEngine, model_of, report_of
from serving.engine.live_model import LiveModel
from serving.engine.operation import EngineState, OperationReport, Sleep, Wake
from serving.engine.weight_update import adopt, put_weights
from serving.engine.weights_fingerprint import weights_fingerprint
from serving.errors import RequestError
from serving.observability.logs import log_event

log = logging.getLogger(__name__)


async def sleep(operation: Sleep, engine: LiveEngine) -> OperationReport:
    model = model_of(engine)
    async with model.exclusively():
        return await engine.on_loop(lambda loop: _fall_asleep(loop, model, operation))


async def wake(_: Wake, engine: LiveEngine) -> OperationReport:
    """Reads the weights from their checkpoint again where they were not kept. Where that fails the engine sleeps on."""
    model = model_of(engine)
    async with model.exclusively():
        if not model.memory.has_weights:
            await asyncio.to_thread(model.source.check, model.checkpoint, 0)
            version = await asyncio.to_thread(weights_fingerprint, model.checkpoint)
            stages = await asyncio.to_thread(model.source.read, model.checkpoint)
            await engine.on_loop(lambda loop: _put(loop, model, stages, version))
        return await engine.on_loop(lambda loop: _wake_up(loop, model))


def _put(loop: EngineLoop, model: LiveModel, stages: list, version: str) -> None:
    put_weights(model, stages)
    if version != model.version:  # somebody wrote the checkpoint anew while the engine slept
        log_event(log, "the engine wakes with other weights", level=logging.WARNING, before=model.version, now=version)
        adopt(loop, model, model.checkpoint, version)


def _fall_asleep(loop: EngineLoop, model: LiveModel, operation: Sleep) -> OperationReport:
    freed = 0
    if loop.state != EngineState.ASLEEP:
        loop.settle()
        loop.scheduler.forget_pages(loop.namespace)
        freed = model.memory.give_back(operation.weights)
        loop.state = EngineState.ASLEEP
    return report_of(loop, freed_bytes=freed)


def _wake_up(loop: EngineLoop, model: LiveModel) -> OperationReport:
    if loop.state != EngineState.ASLEEP:
        raise RequestError(f"the engine is {loop.state}: it does not sleep", code="engine_not_asleep")
    try:
        model.memory.take_back()
    except MemoryError as error:
        raise RequestError(f"the devices have no room for the engine: {error}", code="no_room_to_wake") from error
    loop.state = EngineState.RUNNING
    return report_of(loop)
