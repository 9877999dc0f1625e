"""Other weights for the programs that run, without a restart.

    check     config, forms, tokenizer, room         nothing is touched; a refusal leaves all as it is
    read      onto the devices, beside the old ones  the engine goes on, on one device; on several it holds its steps,
                                                     since the programs of two threads could wait for each other there
    install   between two steps                      the pages of the old weights are forgotten

Streams that are open go on with the new weights: their tokens so far are computed again, and the next one is drawn by
the new weights. A stream's first event and its last one name the weights that drew them.
"""

import asyncio
from pathlib import Path

from serving.engine.engine import EngineLoop
from serving.engine.live_engine import LiveEngine, model_of, report_of
from serving.engine.live_model import LiveModel
from serving.engine.operation import LoadWeights, OperationReport
from serving.engine.recording import end_trace
from serving.engine.weights_fingerprint import weights_fingerprint
from serving.errors import RequestError


async def load_weights(operation: LoadWeights, engine: LiveEngine) -> OperationReport:
    model = model_of(engine)
    folder = model.find(operation.checkpoint)
    async with model.exclusively():
        room = model.memory.bytes_needed_beside
        await asyncio.to_thread(model.source.check, folder, room)
        version = await asyncio.to_thread(weights_fingerprint, folder)
        halts = model.source.num_devices > 1
        if halts:
            await engine.on_loop(_hold)
        try:
            stages = await asyncio.to_thread(model.source.read, folder)
            return await engine.on_loop(lambda loop: _install(loop, model, stages, folder, version))
        finally:
            if halts:
                await engine.on_loop(_release)


def _hold(loop: EngineLoop) -> None:
    loop.settle()
    loop.held = True


def _release(loop: EngineLoop) -> None:
    loop.held = False


def _install(loop: EngineLoop, model: LiveModel, stages: list, folder: Path, version: str) -> OperationReport:
    loop.settle()
    put_weights(model, stages)
    adopt(loop, model, folder, version)
    return report_of(loop)


def put_weights(model: LiveModel, stages: list) -> None:
    """Raises RequestError where their forms differ from those that the programs take, before any is taken."""
    try:
        model.memory.put_weights(stages)
    except ValueError as error:
        raise RequestError(
            f"the weights have other forms than those that the engine was started with: {error}",
            param="checkpoint",
            code="checkpoint_refused",
        ) from error


def adopt(loop: EngineLoop, model: LiveModel, folder: Path, version: str) -> None:
    """What follows from weights of another version being there: nothing that the old ones computed is used again."""
    end_trace(loop, "other weights were loaded")
    model.checkpoint, model.version = folder, version
    model.updates += 1
    loop.weights, loop.namespace = version, model.namespace
    loop.scheduler.forget_pages(loop.namespace)
    if loop.tiers is not None:
        loop.tiers.forget()
