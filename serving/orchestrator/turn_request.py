"""What a turn is asked for, and what it may use up."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from serving.engine.request import GrammarSpec, Priority
from serving.generation.request import GenerationOptions, TextDelta, TextRequest
from serving.orchestrator.context import Passage, Truncation
from serving.orchestrator.turns import Message
from serving.settings.reasoning_switch import Effort

ToolChoice = Literal["none", "auto", "required"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnBudgets:
    """Each ends a turn with a reason of its own, none with an error."""

    rounds: int = 8  # answers of the model
    calls: int = 32  # of tools that run here
    completion_tokens: int | None = None  # of all answers together; None: no limit but each answer's own
    seconds: float | None = None  # for the whole turn
    same_call: int = 3  # so many times the same call with the same arguments end the turn


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRequest:
    request_id: str
    messages: Sequence[Message]  # the conversation in chat completions' form, the input last
    tools: Sequence[dict[str, Any]] = ()  # the client's own, in chat completions' form, which may have `strict`
    server_tools: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by name, with settings for this turn
    tool_notes: Mapping[str, str] = field(default_factory=dict)  # by name: what this turn adds to a description
    tool_choice: ToolChoice = "auto"  # of the first answer; those after it are free to call or not
    named_tool: str | None = None  # with "required": the tool to call
    parallel_calls: bool = True
    options: GenerationOptions = field(default_factory=GenerationOptions)
    grammar: GrammarSpec | None = None  # of the answer
    answer_schema: dict[str, Any] | None = None  # the JSON schema that `grammar` follows; beside tools it is needed
    truncation: Truncation = "auto"
    budgets: TurnBudgets = field(default_factory=TurnBudgets)
    summary: str | None = None  # of what `messages` no longer has
    notes: Sequence[Passage] = ()  # of the memory, best first
    documents: Sequence[Passage] = ()  # best first
    files: Mapping[str, bytes] = field(default_factory=dict)  # for tools, by plain name
    is_kept: bool = True  # False: the memory is read, and is told nothing
    tenant: str = ""
    user: str = ""
    cache_salt: str = ""
    priority: Priority | None = None
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    reasoning_effort: Effort | None = None


class Generate(Protocol):
    """One answer of the model, of one choice, through the gate that every request passes."""

    def __call__(self, request: TextRequest) -> AsyncGenerator[TextDelta, None]: ...


class KeepPages(Protocol):
    """Keeps the pages of what `request` renders to in the engine's cache, for the time of the context and at most for
    `seconds`. It refuses nothing: where pages cannot be kept, they are not."""

    def __call__(self, request: TextRequest, seconds: float) -> AbstractAsyncContextManager[None]: ...
