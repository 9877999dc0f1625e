"""What the operations on adapters do to the engine in this process."""

from serving.engine.adapter_messages import ListAdapters, LoadAdapter, PinAdapter, UnloadAdapter
from serving.engine.adapters import Adapters, no_adapters
from serving.engine.engine import EngineLoop
from serving.engine.live_engine import LiveEngine, report_of
from serving.engine.operation import OperationReport


async def load_adapter(operation: LoadAdapter, engine: LiveEngine) -> OperationReport:
    await _adapters(engine).load(operation.name, operation.folder)
    return await _report(engine)


async def unload_adapter(operation: UnloadAdapter, engine: LiveEngine) -> OperationReport:
    _adapters(engine).unload(operation.name)
    return await _report(engine)


async def pin_adapter(operation: PinAdapter, engine: LiveEngine) -> OperationReport:
    await _adapters(engine).pin(operation.name, operation.pinned)
    return await _report(engine)


async def list_adapters(_: ListAdapters, engine: LiveEngine) -> OperationReport:
    return await _report(engine)


async def _report(engine: LiveEngine) -> OperationReport:
    states = _adapters(engine).states()

    def made(loop: EngineLoop) -> OperationReport:
        return report_of(loop, adapters=states)

    return await engine.on_loop(made)


def _adapters(engine: LiveEngine) -> Adapters:
    """Raises UnsupportedError."""
    if engine.adapters is None:
        raise no_adapters()
    return engine.adapters
