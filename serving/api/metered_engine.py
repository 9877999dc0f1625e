"""An engine that reports what text deltas do not carry: how long streams waited in its queue, and what it had counted
before the first of them."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import asdict

from serving.engine.client import Engine, EngineInfo, EngineStats
from serving.engine.operation import Operation, OperationReport
from serving.engine.request import GenerateRequest, TokenEvent
from serving.errors import WeftError
from serving.observability.metrics import Metrics


class MeteredEngine:
    """Wraps the engine that a Generator is given."""

    def __init__(self, engine: Engine, metrics: Metrics) -> None:
        self._engine = engine
        self._metrics = metrics

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenEvent, None]:
        if not self._metrics.has_met_engine:
            await self._meet()
        async with aclosing(self._engine.generate(request)) as events:
            async for event in events:
                if event.queue_seconds is not None:
                    self._metrics.queue.observe(event.queue_seconds)
                yield event

    async def _meet(self) -> None:
        try:
            self._metrics.meet_engine(asdict(await self._engine.stats()))
        except WeftError:
            return  # `generate` is about to say the same

    async def info(self) -> EngineInfo:
        return await self._engine.info()

    async def stats(self) -> EngineStats:
        return await self._engine.stats()

    async def operate(self, operation: Operation) -> OperationReport:
        return await self._engine.operate(operation)

    async def close(self) -> None:
        await self._engine.close()
