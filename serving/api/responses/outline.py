"""The response object: what is asked, how far it is, what came of it. Its output stands in items of their own."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from serving.api.error_reply import error_code
from serving.api.responses.body import ResponsesBody, SchemaFormat
from serving.api.responses.items import shown
from serving.errors import WeftError
from serving.orchestrator.context import Context
from serving.orchestrator.moderation.judges.judge import Direction
from serving.orchestrator.moderation.policy import REVIEW, UNJUDGED
from serving.orchestrator.turn_events import Notice, TurnEnd, TurnEnded, TurnUsage
from serving.sessions.conversations.records import Item

INTERRUPTED = "server_error"  # OpenAI's word for what is not the client's fault
_INCOMPLETE = {
    "length": "max_output_tokens",
    TurnEnd.TOKENS.value: "max_output_tokens",
    TurnEnd.CALLS.value: "max_tool_calls",
}
_SIDES: Mapping[Direction, str] = {"input": "this question", "output": "this answer"}
_WHOLE = (TurnEnd.STOP.value, TurnEnd.CLIENT_CALLS.value)


@dataclass(slots=True)
class Outline:
    """Changed as the response goes on; `facts` is it at one moment."""

    id: str
    created_at: int
    model: str
    asked: Mapping[str, Any]
    status: str = "in_progress"
    completed_at: int | None = None
    error: dict[str, Any] | None = None
    incomplete: dict[str, Any] | None = None
    usage: TurnUsage | None = None
    left_out: list[dict[str, Any]] = field(default_factory=list)
    notices: list[dict[str, Any]] = field(default_factory=list)

    @property
    def facts(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created_at,
            "status": self.status,
            "completed_at": self.completed_at,
            "error": self.error,
            "incomplete_details": self.incomplete,
            "model": self.model,
            **self.asked,
            "usage": None if self.usage is None else _usage(self.usage),
            "left_out": self.left_out,
            "notices": self.notices,
        }

    @property
    def ending(self) -> dict[str, Any]:
        """What an end changes of `facts`, without what was asked: small enough to be kept in mind."""
        facts = self.facts
        return {name: facts[name] for name in ("status", "completed_at", "error", "incomplete_details", "usage")}

    def fit(self, context: Context) -> None:
        self.left_out = [{"kind": left.kind, "id": left.id, "tokens": left.tokens} for left in context.left_out]

    def note(self, notice: Notice) -> None:
        self.notices.append({"kind": notice.kind, "text": notice.text, "facts": notice.facts})

    def end(self, ended: TurnEnded, now: float) -> None:
        self.usage = ended.usage
        if is_whole(ended):
            self.status, self.completed_at = "completed", math.floor(now)
            return
        self.status = "incomplete"
        self.incomplete = {"reason": _INCOMPLETE.get(ended.reason, ended.reason)}
        if ended.detail:
            self.incomplete["detail"] = ended.detail

    def fail(self, error: WeftError) -> None:
        self.status = "failed"
        self.error = {"code": error_code(error), "message": error.message}

    def cancel(self) -> None:
        self.status = "cancelled"


def is_whole(ended: TurnEnded) -> bool:
    """Whether nothing cut the answer short."""
    return ended.reason in _WHOLE


def outline_of(body: ResponsesBody, response_id: str, model: str, now: float) -> Outline:
    return Outline(response_id, math.floor(now), model, asked=_asked(body))


def moderation_notices(noted: Mapping[Direction, Mapping[str, float]]) -> Iterator[Notice]:
    """What a policy noted of the question and of the answer, and what it has routed to a person."""
    for direction, side in _SIDES.items():
        scores = {category: score for category, score in noted.get(direction, {}).items() if category != REVIEW}
        if scores:
            told = f"the server's content policy noted {side}: {', '.join(sorted(scores))}"
            if UNJUDGED in scores:
                told = f"{side} could not be checked against the server's content policy"
            yield Notice("moderation", told, {"of": direction, "scores": scores})
    reviewed: list[Direction] = [direction for direction in _SIDES if REVIEW in noted.get(direction, {})]
    if reviewed:
        named = " and ".join(_SIDES[direction] for direction in reviewed)
        yield Notice("review", f"a person will look at {named}", {"of": reviewed})


def whole(facts: Mapping[str, Any], outputs: Sequence[Item], include: Sequence[str] = ()) -> dict[str, Any]:
    """What a client sees of a response."""
    return {**facts, "output": [visible(item, include) for item in outputs]}


def visible(item: Item, include: Sequence[str]) -> Item:
    """Results that are shown only where they are asked for stay out."""
    made = shown(item)
    for kind, name in (("file_search_call", "results"), ("code_interpreter_call", "outputs")):
        if made["type"] == kind and f"{kind}.{name}" not in include:
            made[name] = None
    return made


def _asked(body: ResponsesBody) -> dict[str, Any]:
    return {
        "background": bool(body.background),
        "conversation": None if body.conversation_id is None else {"id": body.conversation_id},
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {"effort": body.effort, "summary": None},
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "store": body.is_stored,
        "temperature": body.temperature,
        "text": {"format": _format(body)},
        "tool_choice": "auto" if body.tool_choice is None else msgspec.to_builtins(body.tool_choice),
        "tools": msgspec.to_builtins(body.tools or []),
        "top_logprobs": 0,
        "top_p": body.top_p,
        "truncation": body.truncation or "disabled",
        "user": body.user,
    }


def _format(body: ResponsesBody) -> dict[str, Any]:
    asked = body.text and body.text.format
    if asked is None:
        return {"type": "text"}
    told = msgspec.to_builtins(asked)
    return {**told, "strict": True} if isinstance(asked, SchemaFormat) else told


def _usage(usage: TurnUsage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
