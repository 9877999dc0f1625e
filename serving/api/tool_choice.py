"""Which calls an answer must or may make, as OpenAI's fields say it."""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from serving.errors import RequestError, UnsupportedError
from serving.generation.call_grammar import ANY_ARGUMENTS, CallableTool, CallRules, arguments_of


class FunctionName(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    name: str


class NamedChoice(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    function: FunctionName
    type: Literal["function"]


ToolChoice = Literal["none", "auto", "required"] | NamedChoice
CHOICE_WORDS = {"tool_choice": ("none", "auto", "required"), "tool_choice.type": ("function",)}


class OfferedTool(msgspec.Struct, frozen=True):
    name: str
    parameters: dict[str, Any] | None
    strict: bool | None


def call_rules(
    tools: Sequence[OfferedTool],
    choice: ToolChoice | None,
    *,
    parallel: bool | None,
    content: dict[str, Any] | None,
) -> CallRules | None:
    """None where the answer is free. `content` is the JSON schema that an answer without calls has to follow.

    A strict tool's arguments follow its schema. Those of one that does not say so follow it where a call is forced.
    Raises RequestError for a choice that the tools do not have.
    """
    if choice == "none" or not tools:
        if choice not in (None, "none"):
            shown = f'"{choice}"' if isinstance(choice, str) else "of a function"
            raise RequestError(f"tool_choice {shown} needs tools", param="tool_choice", code="invalid_value")
        return None
    forced = choice not in (None, "auto")
    if not forced and parallel is not False and content is None and not any(tool.strict for tool in tools):
        return None
    if isinstance(choice, NamedChoice):
        tools = [tool for tool in tools if tool.name == choice.function.name]
        if not tools:
            raise RequestError(
                f"tool_choice names {choice.function.name!r}, which is none of the tools",
                param="tool_choice.function.name",
                code="invalid_value",
            )
    callable_tools = tuple(
        CallableTool(
            name=tool.name,
            arguments=arguments_of(tool.name, tool.parameters)
            if tool.strict or (forced and tool.strict is None)
            else ANY_ARGUMENTS,
        )
        for tool in tools
    )
    many = parallel is not False and not isinstance(choice, NamedChoice)
    return CallRules(tools=callable_tools, required=forced, many=many, content=None if forced else content)


def refuse_form_beside_tools(param: str) -> None:
    raise UnsupportedError(
        f'{param} is not supported beside tools that may be called: send response_format, or tool_choice "none"',
        param=param,
    )
