"""An engine that reports how long streams waited in its queue; the one number that text deltas do not carry."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import cast

from serving.engine.client import Engine, EngineInfo, EngineStats
from serving.engine.request import GenerateRequest, TokenEvent
from serving.observability.metrics import Metrics


class MeteredEngine:
    """Wraps the engine that a Generator is given."""

    def __init__(self, engine: Engine, metrics: Metrics) -> None:
        self._engine = engine
        self._metrics = metrics

    async def generate(self, request: GenerateRequest) -> AsyncIterator[TokenEvent]:
        async with aclosing(cast(AsyncGenerator[TokenEvent, None], self._engine.generate(request))) as events:
            async for event in events:
                if event.queue_seconds is not None:
                    self._metrics.queue.observe(event.queue_seconds)
                yield event

    async def info(self) -> EngineInfo:
        return await self._engine.info()

    async def stats(self) -> EngineStats:
        return await self._engine.stats()

    async def close(self) -> None:
        await self._engine.close()
