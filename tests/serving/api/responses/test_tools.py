"""Which of a server's tools a response may call."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from serving.api.responses.tools import (
    AnyTool,
    AutoContainer,
    CodeInterpreterTool,
    FileSearchTool,
    McpTool,
    NamedBuiltin,
    NamedMcp,
    NamedWebSearch,
    chosen_tool,
    turn_tools,
)
from serving.errors import RequestError
from serving.orchestrator.tools.registry import ToolResult, ToolScope
from serving.orchestrator.tools.toolbox import Toolbox
from serving.settings.tools import ToolsConfig


@dataclass
class _Remote:
    name: str
    description: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    idempotent: bool = True

    async def run(self, arguments: dict[str, Any], scope: ToolScope) -> ToolResult:
        raise AssertionError("nothing is called here")


@pytest.fixture
def toolbox() -> Toolbox:
    made = Toolbox(ToolsConfig())
    for name in ("now", "convert", "time__zones"):
        made.registry.add(_Remote(f"time__{name}"), group="mcp:time")
    return made


@pytest.mark.parametrize(
    ("allowed", "offered"),
    [
        (None, ["time__now", "time__convert", "time__time__zones"]),
        (["convert", "now"], ["time__now", "time__convert"]),
        (["time__now"], ["time__now"]),
        (["time__zones"], ["time__time__zones"]),
        ([], []),
    ],
)
def test_allowed_tools_are_named_as_their_server_does_or_as_they_are_here(
    toolbox: Toolbox, allowed: list[str] | None, offered: list[str]
) -> None:
    assert list(turn_tools([McpTool(server_label="time", allowed_tools=allowed)], toolbox).here) == offered


def test_an_allowed_tool_that_its_server_does_not_have_is_refused(toolbox: Toolbox) -> None:
    with pytest.raises(RequestError, match="'yesterday', which the server time does not have") as refused:
        turn_tools([McpTool(server_label="time", allowed_tools=["now", "yesterday"])], toolbox)
    assert refused.value.param == "tools[0].allowed_tools"


@pytest.mark.parametrize(
    "tools",
    [
        [FileSearchTool(vector_store_ids=["vs_1"]), FileSearchTool(vector_store_ids=["vs_2"])],
        [CodeInterpreterTool(container=AutoContainer(type="auto")), CodeInterpreterTool(container="cntr_1")],
    ],
    ids=["file_search", "code_interpreter"],
)
def test_a_second_search_or_interpreter_is_refused_and_does_not_take_the_place_of_the_first(
    toolbox: Toolbox, tools: list[AnyTool]
) -> None:
    for name in ("file_search", "code_interpreter"):
        toolbox.registry.add(_Remote(name))
    with pytest.raises(RequestError, match=r"there is one (file_search|code_interpreter) in a request") as refused:
        turn_tools(tools, toolbox)
    assert refused.value.param == "tools[1]"
    assert len(turn_tools(tools[1:], toolbox).here) == 1


def test_a_chosen_tool_is_looked_for_on_its_server(toolbox: Toolbox) -> None:
    for name in ("now", "time__now"):
        assert chosen_tool(NamedMcp(server_label="time", name=name), toolbox.registry) == "time__now"
    for label, name in (("time", "calculator"), ("tide", "now")):
        with pytest.raises(RequestError, match=f"the server {label} does not have"):
            chosen_tool(NamedMcp(server_label=label, name=name), toolbox.registry)


def test_a_type_with_several_tools_is_chosen_by_the_one_of_its_name(toolbox: Toolbox) -> None:
    with pytest.raises(RequestError, match="'web_search', which is no tool of this server"):
        chosen_tool(NamedWebSearch(), toolbox.registry)
    for name in ("web_search", "web_fetch"):
        toolbox.registry.add(_Remote(name), group="web_search")
    assert chosen_tool(NamedWebSearch(), toolbox.registry) == "web_search"
    assert chosen_tool(NamedBuiltin(name="web_fetch"), toolbox.registry) == "web_fetch"
