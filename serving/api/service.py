"""What every endpoint needs, in one place that `build_app` fills."""

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from serving.api.adapter_names import AdapterNames
from serving.api.stream_slots import StreamSlots
from serving.engine.client import Engine
from serving.errors import NotFoundError, UnsupportedError
from serving.events.event_log import EventLog
from serving.gateway.gateway import Gateway
from serving.generation.generator import Generator
from serving.generation.answers.answer_form import CALL_FORM_NAMES
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """What GET /v1/models says."""

    name: str
    created: int  # seconds since 1970
    max_model_len: int  # tokens
    owned_by: str = "weft"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLimits:
    heartbeat_seconds: float = 15.0  # silence before a comment line
    slow_reader_seconds: float = 30.0  # one write may wait so long before the stream is cut
    max_pending: int = 256  # deltas that wait for a client; then the generator waits
    grace_seconds: float = 120.0  # how long a durable stream goes on without a reader


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
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
    encoder: TextEmbedder | None = None  # behind /v1/embeddings
    moderation: Moderation | None = None  # None: nothing is judged
    toolbox: Toolbox = field(default_factory=Toolbox)
    control_tokens: ControlTokens | None = None  # of the generator's tokenizer; None: each turn finds them again
    adapters: AdapterNames | None = None  # None: the deployment has none
    memories: Memories | None = None  # None: nobody's
    semantic_cache: SemanticCache | None = None  # None: every answer is generated
    quality_watch: QualityWatch | None = None  # None: no canary prompts are asked
    now: Callable[[], float] = field(default=time.time)

    def check_model(self, name: str | None) -> None:
        """Raises NotFoundError; None is the served model."""
        if name is not None and name != self.card.name:
            raise NotFoundError(
                f"there is no model {name[:100]!r} here; this server has {self.card.name!r}",
                param="model",
                code="model_not_found",
            )

    def check_served(self, name: str | None) -> None:
        """As `check_model`, but for names that an adapter may have: of those, `adapter_of` asks the engine."""
        if name is None or self.adapters is None or self.adapters.spelled(name) is None:
            self.check_model(name)

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

    def check_tool_format(self) -> None:
        """Raises UnsupportedError. A model without a chat template is refused by the generator."""
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
