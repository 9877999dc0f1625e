"""What happens in one turn, in its order; every protocol makes its own form of these.

    ContextFitted, then of one answer of the model: ReasoningOut ... TextOut ...
    (CallBegun, CallArguments ..., CallReady) ...
    ResultReady of each call that runs here, as they end; and again from ContextFitted, until
    TurnEnded: exactly one, and the last, of a turn that does not raise.

The turn goes on only when the next event is asked for: whoever records an event before asking has recorded a call
before its tool runs, and its result before the model sees it.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from serving.generation.answers.parts import ToolCall
from serving.orchestrator.context import Context
from serving.orchestrator.tools.registry import ToolResult


class TurnEnd(StrEnum):
    """Beside these, a turn ends with what the model's answer ended with, such as "length" or "timeout"."""

    STOP = "stop"  # the answer is whole
    CLIENT_CALLS = "tool_calls"  # calls wait for the client's results
    ROUNDS = "tool_rounds"  # the model went on calling tools for as many answers as a turn may have
    CALLS = "tool_call_limit"
    REPEATED = "repeated_call"  # one call, again and again with the same arguments
    TOKENS = "token_budget"
    TIME = "time_budget"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnUsage:
    """Of all the model calls of a turn."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0  # of the completions'
    model_calls: int = 0
    tool_calls: int = 0  # that ran here


@dataclass(frozen=True, slots=True)
class ContextFitted:
    """Before each call of the model."""

    context: Context


@dataclass(frozen=True, slots=True)
class ReasoningOut:
    text: str


@dataclass(frozen=True, slots=True)
class TextOut:
    text: str


@dataclass(frozen=True, slots=True)
class CallBegun:
    call_id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A piece of a call's arguments; joined they are JSON."""

    call_id: str
    text: str


@dataclass(frozen=True, slots=True)
class CallReady:
    """A whole call. One that does not run here waits for the client: the turn ends after its answer."""

    call: ToolCall
    runs_here: bool = True


@dataclass(frozen=True, slots=True)
class ResultReady:
    call_id: str
    result: ToolResult


@dataclass(frozen=True, slots=True)
class Notice:
    """Something the user should know. `kind` is stable; `text` is a sentence."""

    kind: str
    text: str
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEnded:
    """`reason` is one of TurnEnd or the model's own; `detail` is a sentence where it is none of the usual."""

    reason: str
    usage: TurnUsage
    detail: str = ""


TurnEvent = (
    ContextFitted | ReasoningOut | TextOut | CallBegun | CallArguments | CallReady | ResultReady | Notice | TurnEnded
)
