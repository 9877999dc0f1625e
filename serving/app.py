"""The composition root: the one place where a deployment becomes objects. Nothing else builds and wires.

build_engine     in the engine process: weights, programs, pages, scheduler, loop
run_follower     in the engine processes of other hosts: weights, programs, pages, and the leader's plans
build_generator  over any Engine: tokenizer, chat format, defaults
build_api        in the API process: the HTTP application over a generator
build_gateway    who may ask, and how much
build_grpc       the gRPC listener beside it
build_admin      the admin listener beside it
"""

import gc
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette

from serving.api.adapter_names import AdapterNames
from serving.api.admin import build_admin_app
from serving.api.admin_listener import AdminListener
from serving.api.http import build_app
from serving.api.metered_engine import MeteredEngine
from serving.api.request_body import body_bytes_for
from serving.api.service import ModelCard, ModelParts, StreamLimits
from serving.config import Deployment, StreamsConfig, TracesConfig
from serving.engine.client import Engine
from serving.engine.embedding import Embedder
from serving.engine.encoder_folder import read_encoder
from serving.engine.follower import Membership, follow
from serving.engine.leader import Leader
from serving.engine.live_model import LiveModel
from serving.engine.text_model import read_text_model
from serving.engine.weights_fingerprint import weights_fingerprint
from serving.errors import CheckpointError, ConfigError
from serving.events.event_log import EventLog, WrittenEventLog
from serving.events.event_metrics import EventMetrics
from serving.events.outbox import Outbox
from serving.gateway.gateway import Gateway
from serving.gateway.gateway_metrics import GatewayMetrics
from serving.gateway.identity import check_exposure, identity_of
from serving.gateway.ledger import Ledger
from serving.generation.chat_format import load_chat_format
from serving.generation.context_window import read_context_window
from serving.generation.generator import Generator
from serving.generation.grammar_vocabulary import vocabulary_of
from serving.generation.text_embedder import EncoderTokenizer, MarkingTokenizer, TextEmbedder
from serving.generation.tokenizer import Tokenizer, load_tokenizer
from serving.observability.metrics import Metrics
from serving.observability.request_trace import Tracing
from serving.orchestrator.memory.memories import Memories
from serving.orchestrator.moderation.seating import moderation_of
from serving.orchestrator.quality_watch.canary import read_canaries
from serving.orchestrator.quality_watch.quality_watch import QualityWatch
from serving.orchestrator.semantic_cache.semantic_cache import SemanticCache
from serving.orchestrator.tools.toolbox import Toolbox
from serving.sessions.conversations.conversations import Conversations
from serving.sessions.conversations.quota import Quota
from serving.sessions.conversations.sqlite_store import SqliteConversationStore
from serving.sessions.conversations.store import ConversationStore
from serving.sessions.durable_generations import DurablePolicy
from serving.sessions.generation_log import GenerationLog, LogLimits
from serving.sessions.generation_log_memory import MemoryGenerationLog
from serving.sessions.generation_log_sqlite import SqliteGenerationLog
from serving.settings.conversations import ConversationsConfig
from serving.settings.postgres import PASSWORD_VARIABLE

if TYPE_CHECKING:
    from serving.api.grpc.server import GrpcServer

REDIS_PASSWORD_VARIABLE = "WEFT_REDIS_PASSWORD"
GUARD_KEY_VARIABLE = "WEFT_GUARD_API_KEY"
EVENTS_KEY_VARIABLE = "WEFT_EVENTS_KEY"
COLLECTOR_VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")

Progress = Callable[[str, int, int], None]  # what is done, how much of it, of how much


def build_engine(
    deployment: Deployment,
    progress: Progress | None = None,
    on_failure: Callable[[BaseException], None] | None = None,
    leader: Leader | None = None,
    watch: Callable[[Any], None] | None = None,
) -> Engine:
    """Loads the model, compiles every program and starts the loop. Takes seconds to minutes; with a `leader`, the one
    of a deployment on several hosts, until the last of these has loaded too.

    Raises CheckpointError or ConfigError. `on_failure` is called, on the engine's thread, should the loop die. `watch`
    is told how many tokens each routed expert gets, of each layer and step, at a cost: for measuring.
    """
    cluster = deployment.cluster
    if (leader is not None) != (cluster.processes > 1):
        raise ConfigError(
            f"cluster.processes is {cluster.processes}: weft serve on one host and weft follower on the others serve "
            "such a deployment; this command runs in one process alone",
            param="processes",
        )
    # Here and not above: the API process imports this module too, and must not load JAX.
    from serving.engine.device import load_executor
    from serving.engine.encoder import load_encoder
    from serving.engine.executor import Executor
    from serving.engine.local import start_local_engine
    from serving.engine.tiers.opening import open_tiers

    if leader is not None:
        _join_runtime(deployment, leader.gather(cluster.runtime_port, progress), process=0)
    begin = time.monotonic()
    encoder = load_encoder(deployment, progress)
    window = window_of(deployment)
    text_model = read_text_model(deployment, window)
    unit = None if text_model is None else text_model.unit
    executor = load_executor(deployment, window, progress, unit_vectors=unit, watch=watch)
    _spare_the_garbage_collector()
    version = weights_fingerprint(deployment.model.checkpoint)
    model = None
    if leader is not None:
        executor = leader.lead(executor, progress)
    else:
        memory = executor.memory
        assert memory.source is not None
        model = LiveModel(
            name=deployment.name,
            memory=memory,
            source=memory.source,
            checkpoint=deployment.model.checkpoint,
            version=version,
            folder=deployment.operations.checkpoints,
        )
    return start_local_engine(
        deployment,
        executor,
        startup_seconds=time.monotonic() - begin,
        on_failure=on_failure,
        vocabulary=lambda: vocabulary_of(load_tokenizer(deployment.model.checkpoint)),
        encoder=encoder,
        model=model,
        version=version,
        stacks=executor.adapters if isinstance(executor, Executor) else None,
        tiers=open_tiers(deployment, executor, version) if isinstance(executor, Executor) else None,
        text_model=text_model,
    )


def run_follower(
    deployment: Deployment, process: int, membership: Membership, progress: Progress | None, ready: Callable[[], None]
) -> None:
    """Loads this host's share, says `ready`, and runs the leader's plans until it says goodbye.

    Raises CheckpointError or ConfigError; EngineError where the plans are not the leader's.
    """
    from serving.engine.device import load_executor

    _join_runtime(deployment, membership.runtime, process)
    executor = load_executor(deployment, window_of(deployment), progress)
    _spare_the_garbage_collector()
    membership.loaded(executor)
    ready()
    follow(executor, membership.orders())


def _join_runtime(deployment: Deployment, runtime: str, process: int) -> None:
    from serving.engine.hosts import join_runtime

    join_runtime(runtime, deployment.cluster.processes, process)


def _spare_the_garbage_collector() -> None:
    """What is loaded lives as long as the process: it need not be walked in the middle of a step."""
    gc.collect()
    gc.freeze()


def build_generator(deployment: Deployment, engine: Engine) -> Generator:
    """Raises CheckpointError or ConfigError."""
    checkpoint = deployment.model.checkpoint
    tokenizer = load_tokenizer(checkpoint)
    return Generator(
        engine=engine,
        tokenizer=tokenizer,
        chat_format=load_chat_format(
            checkpoint,
            tokenizer.checkpoint,
            deployment.model.chat_template,
            reasoning=deployment.model.reasoning,
            calls=deployment.model.tool_calls,
            switch=deployment.model.reasoning_switch,
        ),
        model_name=deployment.name,
        max_model_len=window_of(deployment),
    )


def build_encoder(deployment: Deployment, embedder: Embedder | None) -> TextEmbedder | None:
    """None where the deployment has no encoder. Raises CheckpointError or ConfigError."""
    config = deployment.embeddings
    if config is None or embedder is None:
        return None
    facts, tokenizer = read_encoder(config), EncoderTokenizer(config.checkpoint / "tokenizer.json")
    return TextEmbedder(name=config.name, facts=facts, tokenizer=tokenizer, embedder=embedder)


def build_model_embedder(
    deployment: Deployment, tokenizer: Tokenizer, embedder: Embedder | None
) -> TextEmbedder | None:
    """None where the served model embeds nothing. `tokenizer` is its own. Raises CheckpointError or ConfigError."""
    model = read_text_model(deployment, window_of(deployment))
    if model is None or embedder is None:
        return None
    assert deployment.model_embeddings is not None
    marks = MarkingTokenizer(tokenizer, deployment.model_embeddings.end_token)
    return TextEmbedder(
        name=deployment.name, facts=model.facts, tokenizer=marks, embedder=embedder, model=deployment.name
    )


def build_api(
    deployment: Deployment,
    engine: Engine,
    api_key: str | None = None,
    embedder: Embedder | None = None,
    further: Mapping[str, Engine] | None = None,
) -> Starlette:
    """`api_key` is the one key of a server that has no others. `embedder` is the engine's own side of /v1/embeddings,
    which is not there without one. `further` are the engines of the models beside the first, by their names. Raises
    CheckpointError or ConfigError."""
    metrics = Metrics(deployment.name)
    gateway = build_gateway(deployment, metrics, api_key)
    moderation = None
    if deployment.moderation is not None:
        embeddings = deployment.embeddings
        moderation = moderation_of(
            deployment.moderation,
            build_encoder(deployment, embedder),
            metrics.registry,
            encoder_folder=None if embeddings is None else embeddings.checkpoint,
            guard_key=os.environ.get(GUARD_KEY_VARIABLE),
        )
    first = build_model(deployment, deployment.name, engine, gateway, metrics)
    generator, card = first.generator, first.card
    streams = deployment.streams
    texts = None if embedder is None else gateway.guard_embedder(embedder)
    return build_app(
        generator,
        engine,
        deployment.server,
        card,
        metrics=metrics,
        streams=StreamLimits(grace_seconds=streams.grace_seconds),
        log=build_log(streams),
        policy=DurablePolicy(refuse_without_log=streams.on_log_failure == "refuse"),
        gateway=gateway,
        files=deployment.files,
        retrieval=deployment.retrieval,
        tracing=build_tracing(deployment.traces),
        events=build_events(deployment, metrics),
        encoder=build_encoder(deployment, texts),
        model_embedder=build_model_embedder(deployment, generator.tokenizer, texts),
        toolbox=Toolbox(deployment.tools),
        memories=None if deployment.memory is None else Memories(deployment.memory, metrics.registry),
        conversations=build_conversations(deployment.conversations),
        moderation=moderation,
        prefix_cache=deployment.prefix_cache,
        adapters=AdapterNames(engine, deployment.name) if deployment.adapters.slots else None,
        semantic_cache=build_semantic_cache(deployment, engine, embedder, metrics),
        quality_watch=build_quality_watch(deployment, embedder, metrics),
        further=[
            build_model(deployment, name, beside, gateway, metrics.of(name)) for name, beside in (further or {}).items()
        ],
        routing=deployment.routing,
    )


def build_model(deployment: Deployment, name: str, engine: Engine, gateway: Gateway, metrics: Metrics) -> ModelParts:
    """What one of the deployment's models has for itself. Raises CheckpointError or ConfigError."""
    guarded = gateway.guard(MeteredEngine(engine, metrics), name, can_fall_back=name in deployment.routing.fallback)
    generator = build_generator(deployment.of_model(name), guarded)
    card = ModelCard(name=name, created=int(time.time()), max_model_len=generator.max_model_len)
    return ModelParts(generator=generator, engine=engine, metrics=metrics, card=card)


def build_semantic_cache(
    deployment: Deployment, engine: Engine, embedder: Embedder | None, metrics: Metrics
) -> SemanticCache | None:
    """None where the deployment has no such table. Raises CheckpointError or ConfigError."""
    config = deployment.semantic_cache
    if config is None:
        return None
    encoder = build_encoder(deployment, embedder)
    if encoder is None:
        raise CheckpointError("semantic_cache needs an engine that has an encoder", param="semantic_cache")
    return SemanticCache(config, encoder, engine, metrics.registry)


def build_quality_watch(deployment: Deployment, embedder: Embedder | None, metrics: Metrics) -> QualityWatch | None:
    """None where the deployment has no such table. Raises CheckpointError or ConfigError."""
    config = deployment.quality_watch
    if config is None:
        return None
    encoder = build_encoder(deployment, embedder)
    canaries = read_canaries(config.canaries, has_encoder=encoder is not None)
    return QualityWatch(canaries, config.seconds, metrics.registry, encoder)


def build_events(deployment: Deployment, metrics: Metrics) -> EventLog:
    """One that records nothing where the deployment has no such table. Raises ConfigError."""
    config = deployment.events
    if config is None:
        return EventLog()
    outbox, counted = Outbox(config.outbox), EventMetrics(metrics.registry)
    relay = None
    if config.redis is not None:
        from serving.events.relay import Relay  # here: most deployments do without

        password = os.environ.get(REDIS_PASSWORD_VARIABLE)
        relay = Relay(outbox, config.redis, config.stream, config.stream_length, counted, password)
    key = os.environ.get(EVENTS_KEY_VARIABLE)
    secret = key.encode() if key else None
    return WrittenEventLog(config, outbox, deployment.name, counted, secret=secret, relay=relay)


def build_tracing(traces: TracesConfig) -> Tracing:
    """Off where neither the deployment nor OpenTelemetry's own variables name a collector."""
    if traces.endpoint is None and not any(os.environ.get(name) for name in COLLECTOR_VARIABLES):
        return Tracing()
    # Here and not above: most deployments do without, and the SDK takes a while to import.
    from serving.observability.otel import otlp_tracing

    return otlp_tracing(traces.endpoint, traces.sample)


def build_log(streams: StreamsConfig) -> GenerationLog:
    """Raises ConfigError."""
    limits = LogLimits(retain_seconds=streams.retain_seconds, max_bytes=streams.max_bytes)
    if streams.path is not None:
        return SqliteGenerationLog(streams.path, limits)
    if streams.redis is not None:
        # Here and not above: most deployments do without, and its client takes a while to import.
        from serving.sessions.generation_log_redis import RedisGenerationLog

        return RedisGenerationLog(streams.redis, limits, password=os.environ.get(REDIS_PASSWORD_VARIABLE))
    return MemoryGenerationLog(limits)


def build_conversations(config: ConversationsConfig) -> Conversations:
    """Raises ConfigError."""
    quota = Quota(config.max_tenant_conversations, config.max_items, config.max_tenant_bytes)
    return Conversations(build_conversation_store(config), quota=quota)


def build_conversation_store(config: ConversationsConfig) -> ConversationStore:
    """Raises ConfigError."""
    retain = config.retain_seconds
    if config.store == "sqlite" or config.url is None:
        return SqliteConversationStore(config.path, retain)
    # Here and not above: most deployments do without their clients.
    if config.store == "postgres":
        from serving.sessions.conversations.postgres_store import PostgresConversationStore

        return PostgresConversationStore(config.url, retain, os.environ.get(PASSWORD_VARIABLE))
    from serving.sessions.conversations.redis_store import RedisConversationStore

    return RedisConversationStore(config.url, retain, os.environ.get(REDIS_PASSWORD_VARIABLE))


def build_gateway(deployment: Deployment, metrics: Metrics, api_key: str | None = None) -> Gateway:
    """Raises ConfigError."""
    access = deployment.access
    check_exposure(access, api_key, deployment.server.host)
    counted = GatewayMetrics(metrics.registry, access.tenants)
    ledger = None
    if access.usage.ledger is not None:
        ledger = Ledger(access.usage.ledger, on_failure=counted.ledger_failures.inc, on_drop=counted.ledger_dropped.inc)
    store = None
    if access.limits.redis is not None:
        from serving.gateway.redis_store import RedisStore  # here: most deployments do without

        store = RedisStore(access.limits.redis, password=os.environ.get(REDIS_PASSWORD_VARIABLE))
    return Gateway(access, identity=identity_of(access, api_key), store=store, ledger=ledger, metrics=counted)


def build_admin(deployment: Deployment, app: Starlette) -> AdminListener | None:
    """For `build_api`'s application; None where the deployment has no port for it."""
    admin, service = deployment.admin, app.state.service
    if admin.port is None:
        return None
    names = replace(deployment.server, host=admin.host)
    made = build_admin_app(service, names, app.state.board, app.state.kept_data.holders)
    return AdminListener(made, service.metrics, admin.host, admin.port)


def build_grpc(deployment: Deployment, app: Starlette) -> "GrpcServer | None":
    """For `build_api`'s application; None where the deployment has no port for it."""
    server = deployment.server
    if server.grpc_port is None:
        return None
    # Here and not above: its messages are compiled when it is imported, and most deployments do without.
    from serving.api.grpc.server import GrpcServer

    longest = max(window_of(deployment.of_model(name)) for name in deployment.model_names)
    most = server.max_body_bytes or body_bytes_for(longest)
    return GrpcServer(app.state.service, server.host, server.grpc_port, most, tls=server.tls)


def window_of(deployment: Deployment) -> int:
    """Tokens of prompt and output together: the deployment's wish, within what the checkpoint allows."""
    checkpoint = deployment.model.checkpoint
    return read_context_window(checkpoint).of(deployment.engine.max_model_len, checkpoint.name)
