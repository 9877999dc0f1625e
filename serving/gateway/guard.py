"""The engine behind the gateway: whoever has no lease does not get through, whatever protocol it speaks."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from serving.engine.client import Engine, EngineInfo, EngineStats
from serving.engine.request import GenerateRequest, TokenEvent
from serving.errors import EngineError
from serving.gateway.lease import Lease


class GuardedEngine:
    """Wraps the engine that a Generator is given. `leases` are those that are open, by the engine's request ids."""

    def __init__(self, engine: Engine, leases: Mapping[str, Lease]) -> None:
        self._engine = engine
        self._leases = leases

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenEvent, None]:
        lease = self._leases.get(request.request_id)
        if lease is None:
            raise EngineError("a request came to the engine that the gateway has not admitted", code="not_admitted")
        async with aclosing(self._engine.generate(lease.shape(request))) as events:
            async for event in events:
                lease.note(request, event)
                yield event

    async def info(self) -> EngineInfo:
        return await self._engine.info()

    async def stats(self) -> EngineStats:
        return await self._engine.stats()

    async def close(self) -> None:
        await self._engine.close()
