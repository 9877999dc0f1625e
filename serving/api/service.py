"""What every endpoint needs, in one place that `build_app` fills."""

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from serving.api.adapter_names import AdapterNames
from serving.api.answered import Answered
from serving.api.engine_watch import EngineWatch
from serving.api.stream_slots import StreamSlots
from serving.engine.client import Engine
from serving.errors import NotFoundError, RequestError, UnsupportedError
from serving.events.event_log import EventLog
from serving.gateway.gateway import Gateway
from serving.generation.answers.answer_form import CALL_FORM_NAMES
from serving.generation.generator import Generator
from serving.generation.text_embedder import TextEmbedder
from serving.observability.metrics import Metrics
from serving.observability.request_trace import Tracing
from serving.orchestrator.control_tokens import ControlTokens
from serving.orchestrator.memory.memories import Memories
from serving.orchestrator.moderation.moderation import Moderation
from serving.orchestrator.quality_watch.quality_watch import QualityWatch
from serving.orchestrator.semantic_cache.semantic_cache import SemanticCache
from serving.orchestrator.tools.toolbox import Toolbox
from serving.sessions.durable_generations import DurableGenerations
from serving.settings.routing import RoutingConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """What GET /v1/models says."""

    name: str
    created: int  # seconds since 1970
    max_model_len: int  # tokens
    owned_by: str = "weft"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelParts:
    """What a model has for itself that is served beside the first."""

    generator: Generator
    engine: Engine
    metrics: Metrics
    card: ModelCard


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLimits:
    heartbeat_seconds: float = 15.0  # silence before a comment line
    slow_reader_seconds: float = 30.0  # one write may wait so long before the stream is cut
    max_pending: int = 256  # deltas that wait for a client; then the generator waits
    grace_seconds: float = 120.0  # how long a durable stream goes on without a reader


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """Of one model of the server. `models` are the same of all of them, the deployment's first first; what stands on no
    model is the same object in each."""

    generator: Generator
    engine: Engine
    metrics: Metrics
    slots: StreamSlots
    card: ModelCard
    durable: DurableGenerations
    gateway: Gateway = field(default_factory=Gateway)
    streams: StreamLimits = StreamLimits()
    tracing: Tracing = field(default_factory=Tracing)
    events: EventLog = field(default_factory=EventLog)
    answered: Answered = field(default_factory=Answered)
    encoder: TextEmbedder | None = None  # behind /v1/embeddings
    model_embedder: TextEmbedder | None = None  # likewise: the served model
    moderation: Moderation | None = None  # None: nothing is judged
    toolbox: Toolbox = field(default_factory=Toolbox)
    control_tokens: ControlTokens | None = None  # of the generator's tokenizer; None: each turn finds them again
    adapters: AdapterNames | None = None  # None: the deployment has none
    memories: Memories | None = None  # None: nobody's
    semantic_cache: SemanticCache | None = None  # None: every answer is generated
    quality_watch: QualityWatch | None = None  # None: no canary prompts are asked
    now: Callable[[], float] = field(default=time.time)
    models: "dict[str, Service]" = field(default_factory=dict)  # by name; empty: this one alone
    routing: RoutingConfig = field(default_factory=RoutingConfig)
    watch: EngineWatch | None = None  # None: its engine is taken to be there

    @property
    def every(self) -> "tuple[Service, ...]":
        return tuple(self.models.values()) or (self,)

    def of(self, name: str | None) -> "Service":
        """That of the model that a client names, or of the model of an adapter; None is the first. Raises
        NotFoundError."""
        for service in self.every:
            if name in (None, service.card.name):
                return service
        if name in self.routing.names:
            raise RequestError(
                f"{name!r} stands for several models: name the one that is meant", param="model", code="several_models"
            )
        for service in self.every:
            if service.adapters is not None and service.adapters.spelled(name or "") is not None:
                return service
        raise self._not_found(name)

    def check_model(self, name: str | None) -> None:
        """Raises NotFoundError; None is the first model."""
        if name is not None and name not in self.names:
            raise self._not_found(name)

    def check_served(self, name: str | None) -> None:
        """As `check_model`, but for names that an adapter may have: of those, `adapter_of` asks the engine."""
        if name not in self.names:
            self.of(name)

    @property
    def names(self) -> tuple[str, ...]:
        """That clients may send, without those of adapters."""
        return (*(service.card.name for service in self.every), *self.routing.names)

    def _not_found(self, name: str | None) -> NotFoundError:
        there = ", ".join(map(repr, self.names))
        return NotFoundError(
            f"there is no model {str(name)[:100]!r} here; this server has {there}",
            param="model",
            code="model_not_found",
        )

    @property
    def embedders(self) -> tuple[TextEmbedder, ...]:
        """The first is meant where a client names none."""
        return tuple(one for one in (self.encoder, self.model_embedder) if one is not None)

    def embedder_of(self, name: str | None) -> TextEmbedder:
        """Raises NotFoundError, UnsupportedError where nothing embeds."""
        embedders = self.embedders
        if not embedders:
            raise UnsupportedError("this server embeds nothing", param="model")
        for one in embedders:
            if name in (None, one.name):
                return one
        there = " and ".join(repr(one.name) for one in embedders)
        raise NotFoundError(
            f"the model {str(name)[:100]!r} embeds nothing here; what does is {there}",
            param="model",
            code="model_not_found",
        )

    def model_id(self, adapter: str) -> str:
        """Under which usage is booked, and limits are kept."""
        return f"{self.card.name}:{adapter}" if adapter else self.card.name

    async def adapter_of(self, name: str | None) -> str:
        """The adapter that a client's model name means; "": none. Raises NotFoundError."""
        if name is None or name == self.card.name:
            return ""
        if self.adapters is None:
            self.check_model(name)
            return ""
        return await self.adapters.resolve(name)

    def check_tool_format(self, named: str | None = None) -> None:
        """Of this model, or of the one that a client has `named`; of a name that stands for several, whoever chooses
        asks. Raises UnsupportedError. A model without a chat template is refused by the generator."""
        if named is not None:
            return None if named in self.routing.names else self.of(named).check_tool_format()
        chat_format = self.generator.chat_format
        if chat_format is not None and not chat_format.answer_form(with_tools=True).calls:
            raise UnsupportedError(
                f"tools are not supported with {self.card.name}: its chat template does not tell how calls are "
                f"written; a deployment may say it by model.tool_calls, one of {', '.join(CALL_FORM_NAMES)}",
                param="tools",
            )


def new_id() -> str:
    """Unguessable, so that one client cannot name another's request."""
    return secrets.token_hex(16)
