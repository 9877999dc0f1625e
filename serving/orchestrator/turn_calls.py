"""The calls of a turn: which the model may make, and how they and their results stand in its messages."""

import hashlib
import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from serving.errors import RequestError
from serving.generation.answers.parts import ToolCall
from serving.generation.call_grammar import ANY_ARGUMENTS, CallableTool, CallRules, arguments_of
from serving.orchestrator.marked_data import marked
from serving.orchestrator.tools.registry import ToolResult
from serving.orchestrator.turn_request import TurnRequest
from serving.orchestrator.turns import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedTools:
    """In chat completions' form. Those that run here come first: they are the same in more conversations."""

    here: list[dict[str, Any]]
    clients: list[dict[str, Any]]

    @property
    def all(self) -> list[dict[str, Any]]:
        return [*self.here, *self.clients]

    @property
    def names_here(self) -> frozenset[str]:
        return frozenset(tool["function"]["name"] for tool in self.here)

    @property
    def names_of_client(self) -> frozenset[str]:
        return frozenset(tool["function"]["name"] for tool in self.clients)

    @property
    def shown(self) -> list[dict[str, Any]] | None:
        """As the template reads them: without `strict`, which is for the grammar. None: the model may call none."""
        shown = [
            {**tool, "function": {key: value for key, value in tool["function"].items() if key != "strict"}}
            for tool in self.all
        ]
        return shown or None

    def check(self) -> None:
        """Raises RequestError where a name stands for two tools."""
        names = [tool["function"]["name"] for tool in self.all]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise RequestError(f"tools have two of the name {twice!r}", param="tools", code="invalid_value")


def call_rules(turn: TurnRequest, offered: OfferedTools, *, first: bool) -> CallRules | None:
    """None where an answer is free. What the request forces holds for the first answer of a turn: were it for all, none
    could be the last. Raises RequestError for a choice that the tools do not have."""
    required = turn.tool_choice == "required"
    tools = offered.all
    if required and not tools:
        raise RequestError('tool_choice "required" needs tools', param="tool_choice", code="invalid_value")
    if turn.named_tool is not None and turn.named_tool not in [tool["function"]["name"] for tool in tools]:
        raise RequestError(
            f"tool_choice names {turn.named_tool!r}, which is none of the tools",
            param="tool_choice",
            code="invalid_value",
        )
    if not tools:
        return None
    if turn.grammar is not None and turn.answer_schema is None:
        raise RequestError(
            "beside tools an answer can follow a JSON schema, and no other form",
            param="text.format",
            code="unsupported",
        )
    forced = required and first
    strict = any(tool["function"].get("strict") for tool in tools)
    if not forced and turn.parallel_calls and turn.answer_schema is None and not strict:
        return None
    named = turn.named_tool if forced else None
    return CallRules(
        tools=tuple(_callable(tool, forced) for tool in tools if named in (None, tool["function"]["name"])),
        required=forced,
        many=turn.parallel_calls and named is None,
        content=None if forced else turn.answer_schema,
    )


def _callable(tool: dict[str, Any], forced: bool) -> CallableTool:
    """A strict tool's arguments follow its schema; of one that does not say, those of a forced call do."""
    function = tool["function"]
    strict, parameters = function.get("strict"), function.get("parameters")
    if not (strict or (forced and strict is None)):
        return CallableTool(name=function["name"], arguments=ANY_ARGUMENTS)
    return CallableTool(name=function["name"], arguments=arguments_of(function["name"], parameters))


def call_ids(request_id: str) -> Iterator[str]:
    """Of all calls of a turn, in their order; a turn that is run again has the same."""
    for number in itertools.count():
        yield f"call_{hashlib.blake2b(f'{request_id}:{number}'.encode(), digest_size=12).hexdigest()}"


def same_call(call: ToolCall) -> tuple[str, str]:
    """Equal for calls of one tool with equal arguments, whatever the order in which they are written."""
    return call.name, json.dumps(json.loads(call.arguments), sort_keys=True)


def assistant_message(text: str, calls: Sequence[ToolCall], reasoning: str = "") -> Message:
    """Templates decide which answers' reasoning the model reads again: most keep it while tools run."""
    message: Message = {"role": "assistant", "content": text}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in calls
        ]
    return message


def result_message(call: ToolCall, result: ToolResult) -> Message:
    """What a tool here found, marked as data where it may hold what others wrote. A conversation that is taken up again
    has to have it in this form, or it shares no pages with the turn that it was part of."""
    content = result.text if result.harmless else marked(_ResultText(call.name, result.text), "result")
    return {"role": "tool", "tool_call_id": call.id, "content": content}


@dataclass(frozen=True, slots=True)
class _ResultText:
    id: str
    text: str
    title: str = ""
