"""Prefixes that a tenant pins in an engine that runs (see `prefix_pins.py`)."""

import msgspec

from serving.engine.engine import EngineLoop
from serving.engine.live_engine import LiveEngine, report_of
from serving.engine.operation import OperationReport
from serving.engine.pin_messages import ListPins, PinPrefix, UnpinPrefix
from serving.errors import NotFoundError


async def pin_prefix(operation: PinPrefix, engine: LiveEngine) -> OperationReport:
    def pin(loop: EngineLoop) -> OperationReport:
        asked = msgspec.structs.asdict(operation)
        return report_of(loop, pins=(loop.scheduler.pin(**asked, now=loop.now()),))

    return await engine.on_loop(pin)


async def unpin_prefix(operation: UnpinPrefix, engine: LiveEngine) -> OperationReport:
    def unpin(loop: EngineLoop) -> OperationReport:
        if not loop.scheduler.unpin(operation.name, loop.now(), owner=operation.owner):
            raise NotFoundError("there is no such prefix: it has expired, or never was", code="prefix_not_found")
        return report_of(loop)

    return await engine.on_loop(unpin)


async def list_pins(operation: ListPins, engine: LiveEngine) -> OperationReport:
    return await engine.on_loop(
        lambda loop: report_of(loop, pins=tuple(loop.scheduler.pinned(operation.owner, loop.now())))
    )
