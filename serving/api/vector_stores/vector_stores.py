"""Vector stores of one deployment, put together."""

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from starlette.routing import Route

from serving.api.files.file_store import FileStore
from serving.api.service import Service, new_id
from serving.api.vector_stores.desk import Desk
from serving.api.vector_stores.file_routes import file_batch_routes, store_file_routes
from serving.api.vector_stores.store_routes import store_routes
from serving.engine.embedding import EmbedRequest, Texts
from serving.gateway.ask import Ask
from serving.gateway.principal import Principal
from serving.generation.text_embedder import TextEmbedder
from serving.observability.logs import log_failure
from serving.orchestrator.retrieval.catalog import Catalog, CatalogLimits
from serving.orchestrator.retrieval.encoding import Encoding
from serving.orchestrator.retrieval.file_search import FileSearch
from serving.orchestrator.retrieval.index import Index, IndexUnavailableError
from serving.orchestrator.retrieval.index_sqlite import SqliteIndex
from serving.orchestrator.retrieval.ingest import FileIngest
from serving.orchestrator.retrieval.ingest_runner import IngestRunner
from serving.orchestrator.retrieval.nearest_sentences import NearestSentences
from serving.orchestrator.retrieval.parse_process import ParseLimits
from serving.orchestrator.retrieval.query import Query
from serving.orchestrator.retrieval.search import Search, Told
from serving.settings.postgres import PASSWORD_VARIABLE
from serving.settings.retrieval import RetrievalConfig

TOOL_KEY = "file_search"  # in the ledger, where a model searched


@dataclass(frozen=True, slots=True)
class VectorStores:
    routes: list[Route]
    runner: IngestRunner
    search: Search
    sentences: NearestSentences | None  # None: a model is told whole passages
    catalog: Catalog
    index: Index

    @property
    def tool(self) -> FileSearch:
        return FileSearch(self._find)

    async def _find(self, tenant: str, store_ids: Sequence[str], query: Query) -> list[Told]:
        """The turn was admitted with its own limits; the few tokens of a query are counted, and not limited again."""
        principal = msgspec.msgpack.encode(Principal(key_id=TOOL_KEY, tenant=tenant, tier=TOOL_KEY))
        found = await self.search.find(tenant, store_ids, query, principal)
        if self.sentences is not None:
            return await self.sentences.of(found, query.texts, principal)
        return [Told(each, each.held.embedded.passage.chunk.text) for each in found]

    async def check(self) -> None:
        """Before a server begins. Raises ConfigError; a database that is away may come."""
        try:
            await self.index.check()
        except IndexUnavailableError as error:
            log_failure(logging.getLogger(__name__), "vector stores cannot be reached yet", error)

    async def close(self) -> None:
        self.catalog.close()
        await self.index.close()


def open_vector_stores(
    service: Service, config: RetrievalConfig | None, files: FileStore | None
) -> VectorStores | None:
    """None where the deployment has no table for them. Raises ConfigError where its folder or server cannot be used."""
    if config is None or files is None or service.encoder is None:
        return None
    catalog = open_catalog(config, service.now)
    encoding = _encoding(service, service.encoder)
    index = open_index(config, service.encoder.facts.dimensions)
    parsing = ParseLimits(
        seconds=config.parse_seconds,
        memory_bytes=config.parse_memory_bytes,
        most_chars=config.max_file_chars,
        most_pages=config.max_file_pages,
    )
    ingest = FileIngest(catalog, index, encoding, files.path, parsing)
    runner = IngestRunner(catalog, index, ingest, config.folder, at_once=config.concurrent_files)
    search = Search(catalog, index, encoding)
    sentences = NearestSentences(encoding, config.told_sentences) if config.told_sentences else None
    files.before_delete(catalog.forget_file)
    desk = Desk(
        service=service,
        files=files,
        catalog=catalog,
        index=index,
        encoding=encoding,
        search=search,
        runner=runner,
    )
    routes = [*store_routes(desk), *store_file_routes(desk), *file_batch_routes(desk)]
    return VectorStores(routes, runner, search, sentences, catalog, index)


def open_catalog(config: RetrievalConfig, now: Callable[[], float]) -> Catalog:
    """Raises ConfigError where its folder cannot be used."""
    limits = CatalogLimits(
        tenant_stores=config.max_tenant_stores,
        store_files=config.max_store_files,
        tenant_bytes=config.max_tenant_bytes,
    )
    return Catalog(config.folder, limits, now)


def open_index(config: RetrievalConfig, dimensions: int | None = None) -> Index:
    """`dimensions` of the vectors that are added and searched; None: none are. Raises ConfigError."""
    if config.url is None:
        return SqliteIndex(config.folder, cache_bytes=config.cache_bytes)
    # Here and not above: most deployments do without its client.
    from serving.orchestrator.retrieval.index_postgres import PostgresIndex

    return PostgresIndex(config.url, os.environ.get(PASSWORD_VARIABLE), dimensions=dimensions)


def _encoding(service: Service, encoder: TextEmbedder) -> Encoding:
    async def embed(texts: Texts, account: bytes) -> np.ndarray:
        principal = msgspec.msgpack.decode(account, type=Principal)
        request = EmbedRequest(request_id=new_id(), texts=texts)
        async with service.gateway.admit(principal, Ask.of_texts(request, model=encoder.name)):
            vectors = await encoder.embedder.embed(request)
        service.metrics.embedded(encoder.name, len(texts), request.tokens)
        return vectors

    facts = encoder.facts
    return Encoding(
        name=encoder.name,
        dimensions=facts.dimensions,
        max_tokens=facts.max_tokens,
        tokenizer=encoder.tokenizer,
        embed=embed,
    )
