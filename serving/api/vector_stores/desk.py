"""What the paths of vector stores share."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec
from starlette.requests import Request

from serving.api.caller import tenant_of
from serving.api.files.file_store import FileStore
from serving.api.service import Service
from serving.api.vector_stores.bodies import BatchFile, Strategy, plain, sizes_of
from serving.orchestrator.retrieval.catalog import Catalog
from serving.orchestrator.retrieval.encoding import Encoding
from serving.orchestrator.retrieval.index import Index
from serving.orchestrator.retrieval.ingest_runner import IngestRunner
from serving.orchestrator.retrieval.search import Search
from serving.orchestrator.retrieval.vector_store import FileBatch, StoreFile, VectorStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    service: Service
    files: FileStore
    catalog: Catalog
    index: Index
    encoding: Encoding
    search: Search
    runner: IngestRunner

    def store_id(self, request: Request) -> str:
        return request.path_params["vector_store_id"]

    async def store(self, request: Request) -> VectorStore:
        """Raises NotFoundError."""
        return await self.catalog.store(tenant_of(request), self.store_id(request))

    def principal(self, request: Request) -> bytes:
        return msgspec.msgpack.encode(request.state.caller.principal)

    async def prepared(
        self, request: Request, store_id: str, file_ids: Iterable[str], *, strategy: Strategy | None
    ) -> list[StoreFile]:
        given = [BatchFile(file_id=each, chunking_strategy=strategy) for each in dict.fromkeys(file_ids)]
        return [await self.prepare(request, store_id, each) for each in given]

    async def prepare(
        self, request: Request, store_id: str, given: BatchFile, batch: FileBatch | None = None
    ) -> StoreFile:
        """Raises NotFoundError for a file that is not the tenant's, RequestError for sizes that cannot be."""
        most, overlap = sizes_of(given.chunking_strategy)
        source = await self.files.find(tenant_of(request), given.file_id)
        return StoreFile(
            store_id=store_id,
            file_id=source.id,
            filename=source.filename,
            tenant=tenant_of(request),
            principal=self.principal(request),
            encoder=self.encoding.name,
            created_at=int(self.service.now()),
            batch_id=None if batch is None else batch.id,
            attributes=plain(given.attributes),
            max_tokens=most,
            overlap=overlap,
            tenant_bytes=request.state.caller.principal.limits.storage.vector_store_bytes,
        )

    async def attach(self, files: Sequence[StoreFile], batch: FileBatch | None = None) -> list[StoreFile]:
        """Raises QuotaError."""
        kept = await self.catalog.attach(files, batch)
        self.runner.wake()
        return kept
