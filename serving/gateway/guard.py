"""The engine behind the gateway: whoever has no lease does not get through, whatever protocol it speaks."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

import numpy as np

from serving.engine.client import Engine, EngineInfo, EngineStats
from serving.engine.embedding import Embedder, EmbedRequest
from serving.engine.operation import Operation, OperationReport
from serving.engine.request import GenerateRequest, TokenEvent
from serving.errors import EngineError, WeftError
from serving.gateway.lease import Lease, Tokens


class GuardedEngine:
    """Wraps the engine that a Generator is given. `leases` are those that are open, by the engine's request ids."""

    def __init__(self, engine: Engine, leases: Mapping[str, Lease]) -> None:
        self._engine = engine
        self._leases = leases

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenEvent, None]:
        lease = _lease_of(self._leases, request.request_id)
        async with aclosing(self._engine.generate(lease.shape(request))) as events:
            async for event in events:
                lease.note(request, event)
                yield event

    async def info(self) -> EngineInfo:
        return await self._engine.info()

    async def stats(self) -> EngineStats:
        return await self._engine.stats()

    async def operate(self, operation: Operation) -> OperationReport:
        return await self._engine.operate(operation)

    async def close(self) -> None:
        await self._engine.close()


class GuardedEmbedder:
    """Wraps the embedder that a TextEmbedder is given."""

    def __init__(self, embedder: Embedder, leases: Mapping[str, Lease]) -> None:
        self._embedder = embedder
        self._leases = leases

    async def embed(self, request: EmbedRequest) -> np.ndarray:
        """Whoever leaves meanwhile has used the tokens; where it fails nobody has."""
        lease = _lease_of(self._leases, request.request_id)
        lease.settle(Tokens(prompt=request.tokens))
        try:
            return await self._embedder.embed(lease.shape_texts(request))
        except WeftError:
            lease.settle(Tokens())
            raise


def _lease_of(leases: Mapping[str, Lease], request_id: str) -> Lease:
    lease = leases.get(request_id)
    if lease is None:
        raise EngineError("a request came to the engine that the gateway has not admitted", code="not_admitted")
    return lease
