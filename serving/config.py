"""Strict TOML into frozen dataclasses: an unknown key, a wrong type or an impossible value is a ConfigError that names
the file, the key and what would be right. Secrets come from the environment, never from a file.

A deployment names a checkpoint and sets limits. Paths in it are relative to the file.
"""

import dataclasses
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from serving.access import (
    DEFAULT_TIER,
    AccessConfig,
    AdminConfig,
    AdmissionConfig,
    AuthConfig,
    LimitsConfig,
    TenantConfig,
    TierConfig,
    UsageConfig,
    check_access,
)
from serving.errors import ConfigError
from serving.observability.logs import LogFormat
from serving.settings.adapters import AdaptersConfig, check_adapters
from serving.settings.cluster import ClusterConfig, check_cluster
from serving.settings.conversations import ConversationsConfig, check_conversations
from serving.settings.events import EventsConfig, check_events
from serving.settings.files import FilesConfig, check_files
from serving.settings.further_models import FurtherModel, check_further_models
from serving.settings.memory import MemoryConfig, check_memory
from serving.settings.model import EngineConfig, MeshConfig, ModelConfig, PlanConfig
from serving.settings.model_embeddings import ModelEmbeddingsConfig, check_model_embeddings
from serving.settings.moderation import MODERATION_MODEL, ModerationConfig, check_moderation
from serving.settings.operations import OperationsConfig
from serving.settings.ports import Listener, check_ports
from serving.settings.prefix_cache import PrefixCacheConfig, check_prefix_cache
from serving.settings.quality_watch import QualityWatchConfig, check_quality_watch
from serving.settings.reasoning_switch import check_reasoning_switch
from serving.settings.retrieval import RetrievalConfig, check_retrieval
from serving.settings.routing import RoutingConfig, check_routing
from serving.settings.secrets import check_no_passwords
from serving.settings.semantic_cache import SemanticCacheConfig, check_semantic_cache
from serving.settings.server import ServerConfig, check_server
from serving.settings.speculation import SpeculationConfig, check_speculation
from serving.settings.streams import StreamsConfig, check_streams
from serving.settings.tier_models import check_tier_models
from serving.settings.tools import ToolsConfig, check_tools
from serving.web_names import host_and_port


@dataclass(frozen=True, slots=True, kw_only=True)
class TracesConfig:
    """Where spans of requests go (docs/observability.md)."""

    endpoint: str | None = None  # OTLP over HTTP; None: what OTEL_EXPORTER_OTLP_ENDPOINT says, or nowhere
    sample: float = 1.0  # share of the requests that come without a trace context


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingsConfig:
    """The encoder behind /v1/embeddings (docs/embeddings.md)."""

    checkpoint: Path  # a folder in the form of the sentence-transformers library
    name: str  # the model id that clients send
    max_tokens: int = 256  # of a text; longer ones are refused


# What each number may be, both ends included. None is left alone.
_RANGES: dict[str, tuple[int, float]] = {
    "model.group_size": (8, math.inf),
    "engine.max_model_len": (2, math.inf),  # one token of prompt, one of output
    "engine.max_num_seqs": (1, math.inf),
    "engine.max_num_batched_tokens": (1, math.inf),
    "engine.max_waiting": (1, math.inf),
    "engine.sequence_parallel_tokens": (0, math.inf),
    "engine.cpu_threads": (1, math.inf),
    "engine.decode_rounds": (1, 64),
    "engine.page_size": (1, math.inf),
    "engine.num_pages": (1, math.inf),
    "engine.cache_bytes": (1, math.inf),
    "mesh.data": (1, math.inf),
    "mesh.pipeline": (1, math.inf),
    "mesh.expert": (1, math.inf),
    "mesh.tensor": (1, math.inf),
    "cluster.processes": (1, math.inf),
    "cluster.runtime_port": (0, 65535),
    "server.port": (0, 65535),  # 0: any free one
    "server.grpc_port": (0, 65535),
    "server.max_body_bytes": (1024, math.inf),
    "server.max_streams": (1, math.inf),
    "server.drain_seconds": (0, 86400),
    "files.max_file_bytes": (1, 1 << 30),
    "files.max_tenant_bytes": (1, math.inf),
    "files.max_tenant_files": (1, math.inf),
    "files.max_batch_requests": (1, math.inf),
    "files.max_tenant_batches": (1, math.inf),
    "files.concurrent_requests": (1, math.inf),
    "files.retain_batch_days": (0, 36500),
    "conversations.retain_days": (0, 36500),
    "streams.max_bytes": (1 << 20, math.inf),
    "speculation.depth": (1, 15),
    "adapters.slots": (0, 1024),
    "adapters.max_rank": (1, 1024),
    "speculation.ngram_shortest": (1, 16),
    "speculation.ngram_longest": (1, 16),
    "traces.sample": (0, 1),
    "prefix_cache.host_bytes": (1, math.inf),
    "prefix_cache.disk_bytes": (1, math.inf),
    "prefix_cache.tenant_pins": (0, 4096),
    "prefix_cache.pin_seconds": (1, 30 * 86400),
    "operations.trace_bytes": (1 << 16, 1 << 40),
    "streams.retain_seconds": (1, 30 * 86400),
    "streams.grace_seconds": (0, 30 * 86400),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    name: str  # the model id that clients send
    model: ModelConfig
    engine: EngineConfig = field(default_factory=EngineConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
    streams: StreamsConfig = field(default_factory=StreamsConfig)
    files: FilesConfig = field(default_factory=FilesConfig)
    conversations: ConversationsConfig = field(default_factory=ConversationsConfig)
    embeddings: EmbeddingsConfig | None = None  # None: no /v1/embeddings
    model_embeddings: ModelEmbeddingsConfig | None = None  # None: the served model embeds nothing
    moderation: ModerationConfig | None = None  # None: nothing is judged, and no /v1/moderations
    retrieval: RetrievalConfig | None = None  # None: no /v1/vector_stores
    tools: ToolsConfig = field(default_factory=ToolsConfig)
    memory: MemoryConfig | None = None  # None: nobody's, and no /v1/memory
    semantic_cache: SemanticCacheConfig | None = None  # None: every answer is generated
    quality_watch: QualityWatchConfig | None = None  # None: no canary prompts are asked
    events: EventsConfig | None = None  # None: nothing is recorded
    mesh: MeshConfig = field(default_factory=MeshConfig)  # a table, or the path of a file with one
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    plan: PlanConfig = field(default_factory=PlanConfig)
    speculation: SpeculationConfig = field(default_factory=SpeculationConfig)
    adapters: AdaptersConfig = field(default_factory=AdaptersConfig)
    prefix_cache: PrefixCacheConfig = field(default_factory=PrefixCacheConfig)
    operations: OperationsConfig = field(default_factory=OperationsConfig)
    log_format: LogFormat = "text"
    traces: TracesConfig = field(default_factory=TracesConfig)
    auth: AuthConfig = field(default_factory=AuthConfig)
    admin: AdminConfig = field(default_factory=AdminConfig)
    tiers: Mapping[str, TierConfig] = field(default_factory=dict)
    tenants: Mapping[str, TenantConfig] = field(default_factory=dict)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    admission: AdmissionConfig = field(default_factory=AdmissionConfig)
    usage: UsageConfig = field(default_factory=UsageConfig)
    models: Mapping[str, FurtherModel] = field(default_factory=dict)  # beside the first, by their names
    routing: RoutingConfig = field(default_factory=RoutingConfig)

    @property
    def model_names(self) -> tuple[str, ...]:
        """Of the models that have an engine each; the deployment's first is first."""
        return (self.name, *self.models)

    def of_model(self, name: str) -> "Deployment":
        """What the engine of one of `model_names` reads: the first one's is this deployment itself."""
        if name == self.name:
            return self
        tables = {spec.name: getattr(self.models[name], spec.name) for spec in dataclasses.fields(FurtherModel)}
        return Deployment(name=name, log_format=self.log_format, **tables)

    @property
    def access(self) -> AccessConfig:
        """The tables that the gateway reads."""
        names = (spec.name for spec in dataclasses.fields(AccessConfig))
        return AccessConfig(**{name: getattr(self, name) for name in names})


def load_deployment(path: Path) -> Deployment:
    """Reads and checks one deployment file. Raises ConfigError."""
    deployment = _build(Deployment, _read(path, "deployment"), path, prefix="")
    check_limits(deployment, str(path))
    return deployment


def load_mesh(path: Path) -> MeshConfig:
    """Reads one mesh file: the sizes of its axes. Raises ConfigError."""
    return _build(MeshConfig, _read(path, "mesh"), path, prefix="")


def _read(path: Path, kind: str) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such {kind} file", param=kind) from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}", param=kind) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}", param=kind) from error


def check_limits(deployment: Deployment, where: str) -> None:
    """Refuses values out of their range, and limits that cannot hold together. Raises ConfigError."""
    _check_numbers(deployment, where)
    _check_tables(deployment, where)
    _check_devices(deployment, where)
    _check_encoder_users(deployment, where)
    _check_model_names(deployment, where)
    for name in deployment.models:
        check_limits(deployment.of_model(name), f"{where}: models.{name}")


def _check_numbers(deployment: Deployment, where: str) -> None:
    engine = deployment.engine
    for key, (low, high) in _RANGES.items():
        table, name = key.split(".")
        value = getattr(getattr(deployment, table), name)
        if value is not None and not low <= value <= high:
            right = f"at least {low}" if high == math.inf else f"in {low} .. {high}"
            raise ConfigError(f"{where}: {key} must be {right}, not {value}", param=name)
    for name in ("step_timeout_seconds", "aging_seconds", "target_inter_token_ms"):
        value = getattr(engine, name)
        if value is not None and not 0 < value < math.inf:
            raise ConfigError(f"{where}: engine.{name} must be above 0 and finite, not {value}", param=name)
    if engine.target_inter_token_ms is not None and (engine.decode_rounds or 1) > 1:
        raise ConfigError(
            f"{where}: engine.decode_rounds is {engine.decode_rounds}, and several tokens a dispatch are never drawn "
            "beside engine.target_inter_token_ms: leave out one of them",
            param="decode_rounds",
        )
    if engine.max_num_batched_tokens < engine.max_num_seqs:
        raise ConfigError(
            f"{where}: engine.max_num_batched_tokens ({engine.max_num_batched_tokens}) must be at least "
            f"engine.max_num_seqs ({engine.max_num_seqs}), or running streams could not all step together",
            param="max_num_batched_tokens",
        )
    if any(bucket < 1 or bucket > engine.max_num_batched_tokens for bucket in engine.token_buckets):
        raise ConfigError(
            f"{where}: each of engine.token_buckets must lie in 1 .. max_num_batched_tokens "
            f"({engine.max_num_batched_tokens}), not {list(engine.token_buckets)}",
            param="token_buckets",
        )
    admission = deployment.admission
    if deployment.routing.fallback and admission.fallback_at < admission.cap_output_at:
        raise ConfigError(
            f"{where}: admission.fallback_at ({admission.fallback_at}) must be at least admission.cap_output_at "
            f"({admission.cap_output_at})",
            param="fallback_at",
        )


def _check_tables(deployment: Deployment, where: str) -> None:
    """Of the server, each by itself or with one that it needs."""
    for key, text in (("name", deployment.name), ("server.host", deployment.server.host)):
        if not text:
            raise ConfigError(f"{where}: {key} must not be empty", param=key)
    check_server(deployment.server, where)
    check_ports(_listeners(deployment), where)
    check_files(deployment.files, where)
    check_streams(deployment.streams, where)
    check_conversations(deployment.conversations, where)
    check_cluster(deployment.cluster, where)
    _check_embeddings(deployment, where)
    _check_traces(deployment.traces, where)
    check_tools(deployment.tools, where)
    tls = deployment.server.tls
    check_access(deployment.access, where, has_authority=tls is not None and tls.client_authority is not None)
    if deployment.memory is not None:
        check_memory(deployment.memory, where)
    if deployment.quality_watch is not None:
        check_quality_watch(deployment.quality_watch, where)
    if deployment.events is not None:
        check_events(deployment.events, where)
    check_no_passwords(_stores(deployment), where)


def _stores(deployment: Deployment) -> dict[str, str | None]:
    """Addresses of what others run, by their keys."""
    events, retrieval = deployment.events, deployment.retrieval
    return {
        "limits.redis": deployment.limits.redis,
        "streams.redis": deployment.streams.redis,
        "conversations.url": deployment.conversations.url,
        "events.redis": None if events is None else events.redis,
        "retrieval.url": None if retrieval is None else retrieval.url,
    }


def _check_devices(deployment: Deployment, where: str) -> None:
    """What the engine holds, and the mesh that may forbid it."""
    check_speculation(deployment.speculation, where)
    if deployment.model.reasoning_switch is not None:
        check_reasoning_switch(deployment.model.reasoning_switch, where)
    mesh, processes = deployment.mesh, deployment.cluster.processes
    size = {"data": mesh.data, "pipeline": mesh.pipeline, "processes": processes}
    if deployment.model_embeddings is not None:
        check_model_embeddings(deployment.model_embeddings, where, **size)
    check_prefix_cache(deployment.prefix_cache, caching=deployment.engine.prefix_caching, **size, where=where)


def _check_encoder_users(deployment: Deployment, where: str) -> None:
    has_encoder = deployment.embeddings is not None
    if deployment.moderation is not None:
        check_moderation(deployment.moderation, where, has_encoder=has_encoder)
    if deployment.semantic_cache is not None:
        check_semantic_cache(deployment.semantic_cache, where, has_encoder=has_encoder)
    if deployment.retrieval is not None:
        has_files = deployment.files.folder is not None
        check_retrieval(deployment.retrieval, where, has_files=has_files, has_encoder=has_encoder)


def _check_model_names(deployment: Deployment, where: str) -> None:
    """One name means one thing, and whatever names a model names one that is served."""
    encoder = () if deployment.embeddings is None else (deployment.embeddings.name,)
    judge = () if deployment.moderation is None else (MODERATION_MODEL,)
    named, adapters = deployment.model_names, deployment.adapters
    apart = (*encoder, *adapters.named)
    check_adapters(adapters, (*named, *encoder), deployment.mesh.pipeline, where)
    check_further_models(deployment.models, (deployment.name, *apart), deployment.cluster.processes, where)
    allowed = {name: tier.models for name, tier in deployment.tiers.items()}
    check_tier_models(allowed, (*named, *encoder, *judge), adapters, where)
    check_routing(deployment.routing, named, (DEFAULT_TIER, *deployment.tiers), apart, where)


def _listeners(deployment: Deployment) -> list[Listener]:
    """Of the process that answers clients, which is the first of its cluster."""
    server, admin, cluster = deployment.server, deployment.admin, deployment.cluster
    found = [
        Listener("server.port", server.host, server.port),
        Listener("server.grpc_port", server.host, server.grpc_port),
        Listener("admin.port", admin.host, admin.port),
    ]
    coordinator = host_and_port(cluster.coordinator or "")
    if cluster.processes > 1 and coordinator is not None:
        host = cluster.listen or coordinator[0]
        found.append(Listener("cluster.coordinator", host, coordinator[1]))
        found.append(Listener("cluster.runtime_port", host, cluster.runtime_port))
    return found


def _check_traces(traces: TracesConfig, where: str) -> None:
    if traces.endpoint is not None and not traces.endpoint.startswith(("http://", "https://")):
        raise ConfigError(
            f"{where}: traces.endpoint must be a collector's address for OTLP over HTTP, such as "
            f'"http://localhost:4318", not {traces.endpoint!r}',
            param="endpoint",
        )


def _check_embeddings(deployment: Deployment, where: str) -> None:
    config = deployment.embeddings
    if config is None:
        return
    if not config.name or config.name == deployment.name:
        raise ConfigError(
            f"{where}: embeddings.name must be a name of its own, not {config.name!r}: it is what clients choose by",
            param="name",
        )
    if config.max_tokens < 1:
        raise ConfigError(
            f"{where}: embeddings.max_tokens must be at least 1, not {config.max_tokens}", param="max_tokens"
        )
    if deployment.cluster.processes > 1:
        raise ConfigError(f"{where}: embeddings are not offered where cluster.processes is above 1", param="embeddings")


def _build(kind: type, table: dict[str, Any], path: Path, prefix: str) -> Any:
    """One dataclass from one TOML table, field by field."""
    hints = get_type_hints(kind)
    names = {f.name: f for f in dataclasses.fields(kind)}
    for key in table:
        if key not in names:
            known = ", ".join(sorted(names))
            raise ConfigError(f"{path}: unknown key {prefix}{key}; known here: {known}", param=f"{prefix}{key}")
    values: dict[str, Any] = {}
    for name, spec in names.items():
        if name in table:
            values[name] = _value(hints[name], table[name], path, f"{prefix}{name}")
        elif spec.default is dataclasses.MISSING and spec.default_factory is dataclasses.MISSING:
            raise ConfigError(f"{path}: missing key {prefix}{name}", param=f"{prefix}{name}")
    return kind(**values)


def _value(hint: Any, value: Any, path: Path, key: str) -> Any:
    """`value` as the type `hint`, or a ConfigError that says what `key` should be."""
    if hint is MeshConfig and isinstance(value, str):
        return load_mesh(_value(Path, value, path, key))
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        if not isinstance(value, dict):
            raise ConfigError(f"{path}: {key} must be a table", param=key)
        return _build(hint, value, path, prefix=f"{key}.")
    options = [option for option in get_args(hint) if option is not type(None)]
    if get_origin(hint) is Literal:
        if value not in options:
            raise ConfigError(f"{path}: {key} must be one of {', '.join(map(repr, options))}, not {value!r}", param=key)
        return value
    if get_origin(hint) is tuple:
        if not isinstance(value, list):
            raise ConfigError(f"{path}: {key} must be a list", param=key)
        return tuple(_value(options[0], item, path, f"{key}[{i}]") for i, item in enumerate(value))
    if get_origin(hint) is Mapping:
        if not isinstance(value, dict):
            raise ConfigError(f"{path}: {key} must be a table", param=key)
        return {name: _value(options[1], item, path, f"{key}.{name}") for name, item in value.items()}
    if len(options) > 1:
        if type(value) not in options:
            right = " or ".join(option.__name__ for option in options)
            raise ConfigError(f"{path}: {key} must be {right}, not {type(value).__name__} {value!r}", param=key)
        return value
    if options:  # Optional[X]
        return _value(options[0], value, path, key)
    if hint is Path and isinstance(value, str):
        return (path.parent / Path(value).expanduser()).resolve()
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not hint:
        raise ConfigError(
            f"{path}: {key} must be {getattr(hint, '__name__', hint)}, not {type(value).__name__} {value!r}", param=key
        )
    return value
