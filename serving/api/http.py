"""The HTTP application: which path goes where."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import BaseRoute
from starlette.types import Receive, Scope, Send

from serving.api.adapter_names import AdapterNames
from serving.api.batches.batches import Batches, open_batches
from serving.api.canary_calls import canary_calls
from serving.api.data_holders import KeptData
from serving.api.embedding_routes import embedding_routes
from serving.api.engine_watch import EngineWatch
from serving.api.error_reply import pass_on
from serving.api.feedback_routes import feedback_routes
from serving.api.front import Front
from serving.api.gate import Gate
from serving.api.health import health_routes
from serving.api.known_query import with_known_queries
from serving.api.memory_routes import memory_routes
from serving.api.messages.routes import message_routes
from serving.api.moderation_routes import moderation_routes
from serving.api.openapi.routes import document_routes
from serving.api.page import page_routes
from serving.api.prefixes.routes import prefix_routes
from serving.api.request_body import body_bytes_for
from serving.api.responses.responses import Responses
from serving.api.resumed_generation import resumed_events
from serving.api.service import ModelCard, ModelParts, Service, StreamLimits
from serving.api.status.board import StatusBoard
from serving.api.status.routes import status_routes
from serving.api.stream_routes import stream_routes
from serving.api.stream_slots import StreamSlots
from serving.api.text_routes import text_routes
from serving.api.token_routes import model_routes, token_routes
from serving.api.tool_routes import tool_routes
from serving.api.vector_stores.vector_stores import VectorStores, open_vector_stores
from serving.api.websocket import PATH as SOCKET_PATH
from serving.api.websocket import socket_routes
from serving.config import FilesConfig, ServerConfig
from serving.engine.client import Engine
from serving.events.event_log import EventLog
from serving.gateway.gateway import Gateway
from serving.generation.generator import Generator
from serving.generation.text_embedder import TextEmbedder
from serving.observability.metrics import Metrics
from serving.observability.request_trace import Tracing
from serving.observability.tool_metrics import ToolMetrics
from serving.orchestrator.control_tokens import ControlTokens
from serving.orchestrator.memory.memories import Memories
from serving.orchestrator.moderation.canaries import Canaries
from serving.orchestrator.moderation.moderation import Moderation
from serving.orchestrator.quality_watch.quality_watch import QualityWatch
from serving.orchestrator.semantic_cache.semantic_cache import SemanticCache
from serving.orchestrator.tools.toolbox import Toolbox
from serving.sessions.conversations.conversations import Conversations
from serving.sessions.conversations.sqlite_store import SqliteConversationStore
from serving.sessions.durable_generations import DurableGenerations, DurablePolicy
from serving.sessions.generation_log import GenerationLog
from serving.sessions.generation_log_memory import MemoryGenerationLog
from serving.settings.prefix_cache import PrefixCacheConfig
from serving.settings.retrieval import RetrievalConfig
from serving.settings.routing import RoutingConfig


def build_app(
    generator: Generator,
    engine: Engine,
    server: ServerConfig,
    card: ModelCard,
    *,
    metrics: Metrics | None = None,
    streams: StreamLimits | None = None,
    gateway: Gateway | None = None,
    log: GenerationLog | None = None,
    policy: DurablePolicy | None = None,
    tracing: Tracing | None = None,
    files: FilesConfig | None = None,
    encoder: TextEmbedder | None = None,
    model_embedder: TextEmbedder | None = None,
    toolbox: Toolbox | None = None,
    memories: Memories | None = None,
    conversations: Conversations | None = None,
    retrieval: RetrievalConfig | None = None,
    moderation: Moderation | None = None,
    prefix_cache: PrefixCacheConfig | None = None,
    adapters: AdapterNames | None = None,
    semantic_cache: SemanticCache | None = None,
    quality_watch: QualityWatch | None = None,
    further: Sequence[ModelParts] = (),
    routing: RoutingConfig | None = None,
    events: EventLog | None = None,
) -> Starlette:
    """`engine` answers health and metrics, so it may be another view of the one that `generator` uses. `metrics` is
    given where more than this app writes to it (`metered_engine.py`), and `gateway` where it is to ask who comes: an
    open one lets everybody in. `log` holds durable streams; None: this process's memory, as for
    `conversations`. Raises ConfigError where the
    folder of `files` or of `retrieval` cannot be used."""
    metrics = metrics or Metrics(card.name)
    gateway = gateway or Gateway()
    events = events or EventLog()
    if moderation is not None:
        moderation = replace(moderation, events=events)
    if quality_watch is not None:
        quality_watch.events = events
    service = Service(
        generator=generator,
        engine=engine,
        metrics=metrics,
        slots=StreamSlots(server.max_streams),
        card=card,
        durable=DurableGenerations(
            log or MemoryGenerationLog(),
            lambda admitted, past: resumed_events(service, admitted, past),
            policy,
            metrics.count_durable,
        ),
        gateway=gateway,
        streams=streams or StreamLimits(),
        tracing=tracing or Tracing(),
        events=events,
        encoder=encoder,
        model_embedder=model_embedder,
        toolbox=toolbox or Toolbox(),
        memories=memories,
        control_tokens=ControlTokens(generator.tokenizer),
        moderation=moderation,
        adapters=adapters,
        semantic_cache=semantic_cache,
        quality_watch=quality_watch,
        routing=routing or RoutingConfig(),
        watch=EngineWatch(engine),
    )
    service.models[card.name] = service
    for parts in further:
        service.models[parts.card.name] = _of_further(service, parts)
    service.toolbox.registry.watch = ToolMetrics(metrics.registry).note
    service.toolbox.registry.events = events
    max_body_bytes = _body_bytes(service, server)
    board = StatusBoard(service)
    batches = open_batches(service, files, max_body_bytes)
    stores = open_vector_stores(service, retrieval, None if batches is None else batches.files)
    if stores is not None:
        service.toolbox.registry.add(stores.tool, seconds=60)
    kept = conversations or Conversations(SqliteConversationStore(None))
    responses = Responses(
        service,
        kept,
        max_body_bytes,
        files=None if batches is None else batches.files,
        containers=None if batches is None else batches.containers.store,
        stores=None if stores is None else stores.catalog,
    )
    app = Starlette(
        routes=with_known_queries(
            _routes(service, server, board, batches, stores, responses, prefix_cache or PrefixCacheConfig())
        ),
        middleware=[
            Middleware(
                Front,
                metrics=metrics,
                gate=Gate(server),
                gateway=gateway,
                tracing=service.tracing,
                events=service.events,
                model_name=card.name,
            )
        ],
        exception_handlers={HTTPException: pass_on},
        lifespan=partial(_lifespan, service, batches, stores, responses, board),
    )
    app.router.redirect_slashes = False
    app.router.default = _nowhere
    app.state.service = service
    app.state.board = board
    app.state.vector_stores = stores
    app.state.responses = responses
    app.state.kept_data = _kept_data(service, batches, stores, responses)
    app.state.max_body_bytes = max_body_bytes
    return app


def _routes(
    service: Service,
    server: ServerConfig,
    board: StatusBoard,
    batches: Batches | None,
    stores: VectorStores | None,
    responses: Responses,
    prefix_cache: PrefixCacheConfig,
) -> list[BaseRoute]:
    max_body_bytes = _body_bytes(service, server)
    shows_numbers = not service.gateway.access.admin.only_metrics_here
    return [
        *text_routes(service, max_body_bytes),
        *message_routes(service, max_body_bytes),
        *responses.routes,
        *(embedding_routes(service, max_body_bytes) if service.embedders else ()),
        *([] if service.moderation is None else moderation_routes(service, service.moderation, max_body_bytes)),
        *([] if service.memories is None else memory_routes(service.memories, max_body_bytes)),
        *stream_routes(service),
        *feedback_routes(service, responses.conversations),
        *([] if batches is None else batches.routes),
        *([] if stores is None else stores.routes),
        *socket_routes(service, server.max_streams),
        *token_routes(service, max_body_bytes),
        *prefix_routes(service, prefix_cache, max_body_bytes),
        *model_routes(service),
        *tool_routes(service.toolbox.registry),
        *health_routes(service, metrics=shows_numbers),
        *(status_routes(board) if shows_numbers else ()),
        *document_routes(),
        *page_routes(),
    ]


async def _nowhere(scope: Scope, receive: Receive, send: Send) -> None:
    """Of a path that no route has, whatever the protocol."""
    if scope["type"] == "http" and scope["path"] == SOCKET_PATH:
        told = "this path is a WebSocket: the request must ask for the upgrade, which a proxy may have taken out"
        raise HTTPException(426, told, {"upgrade": "websocket"})
    raise HTTPException(404)


def _kept_data(
    service: Service, batches: Batches | None, stores: VectorStores | None, responses: Responses
) -> KeptData:
    return KeptData(
        live=responses.live,
        conversations=responses.conversations,
        memories=service.memories,
        batches=None if batches is None else batches.store,
        files=None if batches is None else batches.files,
        containers=None if batches is None else batches.containers.purge,
        stores=None if stores is None else (stores.catalog, stores.index),
        streams=service.durable.log,
        review=None if service.moderation is None else service.moderation.review,
        events=service.events,
        semantic_cache=service.semantic_cache,
    )


def _body_bytes(service: Service, server: ServerConfig) -> int:
    longest = max(one.card.max_model_len for one in service.every)
    return server.max_body_bytes or body_bytes_for(longest)


def _of_further(first: Service, parts: ModelParts) -> Service:
    """That of a model beside the first. Adapters, answers that serve again and embeddings of the model's own are the
    first's alone."""
    return replace(
        first,
        generator=parts.generator,
        engine=parts.engine,
        metrics=parts.metrics,
        card=parts.card,
        control_tokens=ControlTokens(parts.generator.tokenizer),
        watch=EngineWatch(parts.engine),
        adapters=None,
        semantic_cache=None,
        model_embedder=None,
    )


@asynccontextmanager
async def _lifespan(
    service: Service,
    batches: Batches | None,
    stores: VectorStores | None,
    responses: Responses,
    board: StatusBoard,
    _: Starlette,
) -> AsyncIterator[None]:
    """Streams and batches that another process left are taken up while this one lives."""
    keepers = (service.durable.run, board.run, service.toolbox.run, responses.keeper.run, service.events.run)
    keeping = [asyncio.create_task(keeper()) for keeper in keepers]
    if service.memories is not None:
        keeping.append(asyncio.create_task(service.memories.run()))
    if batches is not None:
        keeping.append(asyncio.create_task(batches.runner.run()))
    if stores is not None:
        keeping.append(asyncio.create_task(stores.runner.run()))
    if service.quality_watch is not None:
        keeping.append(asyncio.create_task(service.quality_watch.run(canary_calls(service))))
    moderation = service.moderation
    if moderation is not None and moderation.review is not None:
        keeping.append(asyncio.create_task(moderation.review.run()))
    if moderation is not None and moderation.canary_seconds is not None:
        keeping.append(asyncio.create_task(Canaries(moderation, moderation.canary_seconds).run()))
    try:
        yield
    finally:
        for task in keeping:
            task.cancel()
        await asyncio.gather(*keeping, return_exceptions=True)
        if batches is not None:
            batches.close()
        if stores is not None:
            await stores.close()
        await responses.close()
        if service.memories is not None:
            service.memories.close()
        await service.durable.hand_over()
        await service.durable.close()
        await service.gateway.close()
        if service.semantic_cache is not None:
            await service.semantic_cache.close()
        if moderation is not None:
            await moderation.close()
        await asyncio.to_thread(service.tracing.close)
        await asyncio.to_thread(service.events.close)
