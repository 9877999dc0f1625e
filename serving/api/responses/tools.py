"""Which tools a response may call: the client's own, and those that run here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

import msgspec

from serving.errors import RequestError, UnsupportedError
from serving.orchestrator.retrieval.file_search import FileSearchSettings
from serving.orchestrator.tools.registry import ToolRegistry
from serving.orchestrator.tools.toolbox import Toolbox

MCP = "mcp"
_NAME = r"^[a-zA-Z0-9_.-]{1,128}$"


class OfferedTool(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    pass


class FunctionTool(OfferedTool, kw_only=True, tag="function"):
    name: Annotated[str, msgspec.Meta(pattern=_NAME)]
    description: str | None = None
    parameters: dict[str, Any] | None = None  # a JSON schema
    strict: bool | None = None


class FileSearchTool(OfferedTool, kw_only=True, tag="file_search"):
    vector_store_ids: Annotated[list[str], msgspec.Meta(min_length=1, max_length=16)]
    max_num_results: Annotated[int, msgspec.Meta(ge=1, le=50)] | None = None
    filters: dict[str, Any] | None = None
    ranking_options: dict[str, Any] | None = None


class AutoContainer(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    type: Literal["auto"]
    file_ids: Annotated[list[Annotated[str, msgspec.Meta(max_length=64)]], msgspec.Meta(max_length=256)] | None = None


class CodeInterpreterTool(OfferedTool, kw_only=True, tag="code_interpreter"):
    container: AutoContainer | Annotated[str, msgspec.Meta(min_length=1, max_length=64)]


class WebSearchTool(OfferedTool, kw_only=True, tag="web_search"):
    pass


class McpTool(OfferedTool, kw_only=True, tag="mcp"):
    """A server that the deployment names: clients cannot bring one."""

    server_label: str
    allowed_tools: list[str] | None = None
    require_approval: Literal["never"] | None = None


class BuiltinTool(OfferedTool, kw_only=True, tag="builtin"):
    """Any other that runs here; `{"type": NAME}` says the same."""

    name: str


AnyTool = FunctionTool | FileSearchTool | CodeInterpreterTool | WebSearchTool | McpTool | BuiltinTool
TOOL_TYPES = tuple(str(kind.__struct_config__.tag) for kind in AnyTool.__args__)


class NamedFunction(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="function"):
    name: str


class NamedMcp(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="mcp"):
    server_label: str
    name: str


class NamedFileSearch(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="file_search"):
    pass


class NamedCode(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="code_interpreter"):
    pass


class NamedWebSearch(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="web_search"):
    pass


class NamedBuiltin(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="builtin"):
    """Any other that runs here; `{"type": NAME}` says the same."""

    name: str


NamedTool = NamedFunction | NamedMcp | NamedFileSearch | NamedCode | NamedWebSearch | NamedBuiltin
NAMED_TYPES = tuple(str(kind.__struct_config__.tag) for kind in NamedTool.__args__)
ToolChoice = Literal["none", "auto", "required"] | NamedTool

TOOL_WORDS = {
    "tools[].type": TOOL_TYPES,
    "tools[].container.type": ("auto",),
    "tools[].require_approval": ("never",),
    "tool_choice": ("none", "auto", "required"),
    "tool_choice.type": NAMED_TYPES,
}


@dataclass(frozen=True, slots=True)
class TurnTools:
    """`labels` are of the tools that run here: what shows each one's calls, and of which server."""

    clients: list[dict[str, Any]] = field(default_factory=list)  # in chat completions' form
    here: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by name, with settings
    labels: Mapping[str, str] = field(default_factory=dict)
    unavailable: list[str] = field(default_factory=list)  # servers that are configured, and not there
    notes: Mapping[str, str] = field(default_factory=dict)  # by name of a tool here: more of its description

    def with_setting(self, name: str, key: str, value: object, *, note: str) -> "TurnTools":
        """Of a tool that runs here; `note` goes behind those that there are."""
        here = {**self.here, name: {**self.here[name], key: value}}
        notes = " ".join(filter(None, (self.notes.get(name), note)))
        return replace(self, here=here, notes={**self.notes, name: notes} if notes else self.notes)


def with_builtins(value: Any) -> Any:
    """`tools` of a body: one that runs here may be named by its type alone."""
    return [_builtin(tool, TOOL_TYPES) for tool in value] if isinstance(value, list) else value


def with_builtin_choice(value: Any) -> Any:
    """`tool_choice` of a body, which names tools as `tools` does."""
    return _builtin(value, NAMED_TYPES)


def _builtin(tool: Any, types: Sequence[str]) -> Any:
    if not isinstance(tool, dict):
        return tool
    if tool.get("type") == "web_search_preview":
        return {**tool, "type": "web_search"}
    return {"type": "builtin", "name": tool["type"]} if set(tool) == {"type"} and tool["type"] not in types else tool


def turn_tools(tools: Sequence[AnyTool], toolbox: Toolbox) -> TurnTools:
    """Raises RequestError for a tool that this server does not have."""
    clients: list[dict[str, Any]] = []
    here: dict[str, dict[str, Any]] = {}
    labels: dict[str, str] = {}
    unavailable: list[str] = []
    registry = toolbox.registry
    known = {*registry.groups, *(f"{MCP}:{server.label}" for server in toolbox.servers)}
    for number, tool in enumerate(tools):
        if isinstance(tool, FunctionTool):
            function = {name: value for name, value in msgspec.to_builtins(tool).items() if value is not None}
            del function["type"]
            clients.append({"type": "function", "function": function})
            continue
        group, label = _group(tool)
        names = registry.group(group)
        if group not in known:
            offered = ", ".join(sorted(known)) or "none"
            raise UnsupportedError(
                f"tools[{number}]: there is no {group[:100]!r} on this server; it has: {offered}",
                param=f"tools[{number}]",
            )
        if isinstance(tool, FileSearchTool):
            _check_file_search(tool, number)
        if isinstance(tool, FileSearchTool | CodeInterpreterTool) and not here.keys().isdisjoint(names):
            raise RequestError(
                f"tools[{number}]: there is one {label} in a request, with all that it is to have; send one",
                param=f"tools[{number}]",
                code="invalid_value",
            )
        if not names:
            unavailable.append(label)
        if isinstance(tool, McpTool) and tool.allowed_tools is not None and names:
            names = _allowed(tool.allowed_tools, names, tool.server_label, f"tools[{number}].allowed_tools")
        for name in names:
            here[name] = _settings(tool)
            labels[name] = label
    return TurnTools(clients, here, labels, unavailable)


def chosen_tool(choice: NamedTool, registry: ToolRegistry) -> str:
    """The name of the one tool that is to be called: a type's own where it has several, as web_search has web_fetch.
    Raises RequestError where this server has no such tool."""
    if isinstance(choice, NamedFunction):
        return choice.name
    if isinstance(choice, NamedMcp):
        names = registry.group(f"{MCP}:{choice.server_label}")
        return _allowed([choice.name], names, choice.server_label, "tool_choice")[0]
    name = choice.name if isinstance(choice, NamedBuiltin) else str(choice.__struct_config__.tag)
    if registry.get(name) is None:
        raise RequestError(
            f"tool_choice names {name[:100]!r}, which is no tool of this server",
            param="tool_choice",
            code="invalid_value",
        )
    return name


def _allowed(wanted: Sequence[str], names: Sequence[str], label: str, param: str) -> tuple[str, ...]:
    """Those of a server's `names` that are wanted, in the server's order: a client may write them as the server does,
    or with the label that they have here. Raises RequestError for one that the server does not have."""
    found = {name for want in wanted for name in (want, f"{label}__{want}") if name in names}
    for want in wanted:
        if not {want, f"{label}__{want}"} & found:
            raise RequestError(
                f"{param} names {want[:150]!r}, which the server {label[:100]} does not have",
                param=param,
                code="invalid_value",
            )
    return tuple(name for name in names if name in found)


def _check_file_search(tool: FileSearchTool, number: int) -> None:
    try:
        FileSearchSettings.of(_settings(tool))
    except RequestError as error:
        param = f"tools[{number}].{error.param or 'type'}"
        raise type(error)(f"tools[{number}]: {error.message}", param=param, code=error.code) from None


def _group(tool: AnyTool) -> tuple[str, str]:
    """What the registry calls it, and what its calls are labelled with."""
    if isinstance(tool, McpTool):
        return f"{MCP}:{tool.server_label}", tool.server_label
    if isinstance(tool, BuiltinTool):
        return tool.name, "weft"
    kind = str(tool.__struct_config__.tag)
    return kind, kind


def _settings(tool: AnyTool) -> dict[str, Any]:
    told = {name: value for name, value in msgspec.to_builtins(tool).items() if value is not None}
    for name in ("type", "name", "server_label", "allowed_tools", "require_approval", "container"):
        told.pop(name, None)
    return told
