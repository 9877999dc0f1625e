"""What an event can tell. Each type has a version in its name: fields may be added to it, and whatever else would
change makes a new one.

Fields of text (`prompts`, `outputs`, `arguments`, `result`, `reason` of feedback) are there only where the deployment
has `events.text`; keys and users are hashes unless it says otherwise. All else is words, numbers and ids that the
server or its operator chose.
"""

from typing import Annotated, ClassVar, Literal

import msgspec

Count = Annotated[int, msgspec.Meta(ge=0)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]

Protocol = Literal[
    "chat.completions", "completions", "messages", "responses", "embeddings", "websocket", "grpc", "batch", "internal"
]


class EventData(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`type` is "weft.GROUP.WHAT.VERSION"."""

    type: ClassVar[str]
    group: ClassVar[str]

    def __init_subclass__(cls) -> None:
        if "type" in cls.__dict__:
            cls.group = cls.type.split(".")[1]


class OfRequest(EventData, kw_only=True, frozen=True, omit_defaults=True):
    """Its event's subject is the request's id."""

    tenant: str
    model: str
    protocol: Protocol
    key: str | None = None  # None: nobody has to say who they are
    user: str | None = None  # the client's own name for whom it asks; None: it says none
    trace_id: str | None = None  # 32 hex digits, as spans and log lines have it


class RequestAdmitted(OfRequest, kw_only=True, frozen=True, omit_defaults=True):
    """The gateway has let it in; the engine has not begun."""

    type = "weft.request.admitted.v1"

    priority: str
    stream: bool
    choices: Count  # of all its prompts; 0: it embeds
    prompt_tokens: Count
    most_output_tokens: Count  # of all choices
    predicted_seconds: Seconds  # to the first token
    continues: bool = False  # it was admitted before, by a process that is gone
    degraded: str | None = None  # what the server gives up as its load rises, and this request with it


class RequestRefused(OfRequest, kw_only=True, frozen=True, omit_defaults=True):
    """Nothing was generated for it."""

    type = "weft.request.refused.v1"

    reason: str  # the error's code
    retryable: bool
    retry_after: Seconds | None = None


class FirstToken(OfRequest, kw_only=True, frozen=True, omit_defaults=True):
    type = "weft.request.first_token.v1"

    seconds: Seconds  # since its arrival
    cached_tokens: Count  # of the prompt
    queue_seconds: Seconds | None = None  # of them, at the engine, before it was planned


class RequestEnded(OfRequest, kw_only=True, frozen=True, omit_defaults=True):
    type = "weft.request.ended.v1"

    outcome: Literal["complete", "failed", "left"]  # left: its client did not wait for the end
    finish_reasons: tuple[str, ...]  # of the choices that ended, in the order in which they did
    prompt_tokens: Count
    cached_tokens: Count  # of the prompt's
    output_tokens: Count
    device_seconds: Seconds  # an estimate, as in the ledger of usage
    seconds: Seconds  # since its arrival
    first_token_seconds: Seconds | None = None  # of them, to the first token
    code: str | None = None  # of the error that ended it
    prompts: tuple[str, ...] | None = None
    outputs: tuple[str, ...] | None = None  # of all choices, prompt by prompt


class RequestNotice(OfRequest, kw_only=True, frozen=True, omit_defaults=True):
    """Something about the answer that its reader was told, such as another model than the one asked for."""

    type = "weft.request.notice.v1"

    kind: str
    detail: str | None = None


class ToolCalled(EventData, kw_only=True, frozen=True, omit_defaults=True):
    """A tool begins to run here. The subject is the request's id."""

    type = "weft.tool.called.v1"

    tenant: str
    tool: str
    user: str | None = None
    arguments: str | None = None  # JSON


class ToolEnded(EventData, kw_only=True, frozen=True, omit_defaults=True):
    type = "weft.tool.ended.v1"

    tenant: str
    tool: str
    outcome: Literal["ok", "error", "timeout", "cancelled"]
    seconds: Seconds
    user: str | None = None
    result: str | None = None


class ModerationFinding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    category: str
    action: str
    score: Annotated[float, msgspec.Meta(ge=0, le=1)]
    judge: str | None = None


class ModerationVerdict(EventData, kw_only=True, frozen=True, omit_defaults=True):
    """A policy acts, or could not be kept because a judge failed. The subject is the request's id."""

    type = "weft.moderation.verdict.v1"

    tenant: str
    direction: Literal["input", "output"]
    outcome: Literal["noted", "stopped", "failed"]
    findings: tuple[ModerationFinding, ...]


class FeedbackGiven(EventData, kw_only=True, frozen=True, omit_defaults=True):
    """A client rates an answer. The subject is the id of the request that was answered, where that is known. Each
    rating is an event, in a sample too: of one answer the last one counts."""

    type = "weft.feedback.given.v1"

    tenant: str
    answer: str  # the id that the client named
    rating: Literal["up", "down"]
    known: bool  # the server could tell that the answer is its own, to this tenant
    model: str | None = None  # that answered, where it is known
    key: str | None = None  # of who rates
    user: str | None = None
    reason: str | None = None


class EngineRestarted(EventData, kw_only=True, frozen=True, omit_defaults=True):
    type = "weft.engine.restarted.v1"

    started_at: float  # seconds since 1970
    away_seconds: Seconds | None = None  # None: it was not seen to be away


class ServerDrained(EventData, kw_only=True, frozen=True, omit_defaults=True):
    """An API process has let nobody in any more, and ends."""

    type = "weft.server.drained.v1"

    open_streams: Count  # when it began to
    left_streams: Count  # that did not end in time
    seconds: Seconds


class CanaryScored(EventData, kw_only=True, frozen=True, omit_defaults=True):
    type = "weft.canary.scored.v1"

    canary: str
    outcome: Literal["scored", "failed"]
    usual: Annotated[float, msgspec.Meta(ge=0, le=1)]
    score: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None


class EventsLost(EventData, kw_only=True, frozen=True, omit_defaults=True):
    """So many events before this one are not in the log, or went before they were shipped."""

    type = "weft.events.lost.v1"

    count: Annotated[int, msgspec.Meta(ge=1)]
    reason: Literal["queue_full", "unshipped"]


EVENT_TYPES: tuple[type[EventData], ...] = (
    RequestAdmitted,
    RequestRefused,
    FirstToken,
    RequestEnded,
    RequestNotice,
    ToolCalled,
    ToolEnded,
    ModerationVerdict,
    FeedbackGiven,
    EngineRestarted,
    ServerDrained,
    CanaryScored,
    EventsLost,
)
