"""Sleep: the engine gives its memory back and keeps its programs. Wake: it takes the memory, and goes on.

Streams that are open wait. They lose their pages, are computed again from their tokens once the engine is awake, and go
on as they would have.
"""

import asyncio

from serving.engine.engine import EngineLoop
from serving.engine.live_engine import LiveEngine, model_of, report_of
from serving.engine.live_model import LiveModel
from serving.engine.operation import EngineState, OperationReport, Sleep, Wake
from serving.errors import RequestError


async def sleep(operation: Sleep, engine: LiveEngine) -> OperationReport:
    model = model_of(engine)
    async with model.exclusively():
        return await engine.on_loop(lambda loop: _fall_asleep(loop, model, operation))


async def wake(_: Wake, engine: LiveEngine) -> OperationReport:
    """Reads the weights from their checkpoint again where they were not kept. Where that fails the engine sleeps on."""
    model = model_of(engine)
    async with model.exclusively():
        if not model.memory.has_weights:
            stages = await asyncio.to_thread(model.source.read, model.checkpoint)
            await engine.on_loop(lambda loop: model.memory.put_weights(stages))
        return await engine.on_loop(lambda loop: _wake_up(loop, model))


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
    model.memory.take_back()
    loop.state = EngineState.RUNNING
    return report_of(loop)
