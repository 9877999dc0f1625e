import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from serving.errors import ConfigError, RequestError
from serving.observability.logs import TextFormatter
from serving.observability.tool_metrics import ToolMetrics
from serving.orchestrator.tools.registry import ToolRegistry, ToolResult, ToolScope

SCOPE = ToolScope(tenant="t", user="u", request_id="r", deadline=time.monotonic() + 3600)
NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@dataclass
class Given:
    """A tool that does what the test says."""

    name: str = "given"
    description: str = "x"
    parameters: dict[str, Any] = field(default_factory=lambda: NUMBER)
    idempotent: bool = True
    raises: Exception | None = None
    waits: bool = False
    tells: ToolResult = field(default_factory=lambda: ToolResult(text="done"))
    seen: list[dict[str, Any]] = field(default_factory=list)

    async def run(self, arguments: dict[str, Any], scope: ToolScope) -> ToolResult:
        self.seen.append(arguments)
        if self.raises is not None:
            raise self.raises
        if self.waits:
            await asyncio.Event().wait()
        return self.tells


async def called(tool: Given, arguments: Any, seconds: float = 3600) -> ToolResult:
    registry = ToolRegistry()
    registry.add(tool, seconds=seconds)
    return await registry.run(tool.name, arguments if isinstance(arguments, str) else json.dumps(arguments), SCOPE)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("{", "not valid JSON"),
        ("[1]", "must be a JSON object"),
        ({}, "'n' is a required property"),
        ({"n": "1"}, "n: '1' is not of type 'integer'"),
        ("[" * 100_000, "not valid JSON"),
        ('{"n": 1e999}', "not valid JSON"),
        ('{"n": NaN}', "not valid JSON"),
    ],
)
async def test_arguments_that_do_not_follow_the_schema_never_reach_the_tool(arguments: Any, reason: str) -> None:
    tool = Given()
    result = await called(tool, arguments)
    assert result.is_error
    assert reason in result.text
    assert tool.seen == []


async def test_a_number_that_the_check_itself_breaks_at_is_a_result() -> None:
    tool = Given(parameters={"type": "object", "properties": {"n": {"multipleOf": 0.01}}})
    result = await called(tool, '{"n": 1' + 400 * "0" + "}")
    assert result.text == "Error: the arguments cannot be checked against the tool's schema"
    assert tool.seen == []


async def test_what_a_tool_tells_can_be_written() -> None:
    tool = Given(tells=ToolResult(text="a \ud83d\ude00 b \ud800", facts={"results": [{"text": "\udc00"}], "count": 1}))
    result = await called(tool, {"n": 1})
    assert result.text == "a \U0001f600 b \ufffd"
    assert result.facts == {"results": [{"text": "\ufffd"}], "count": 1}


async def test_a_schema_that_refers_outside_is_not_fetched() -> None:
    tool = Given(parameters={"type": "object", "properties": {"n": {"$ref": "http://127.0.0.1:9/schema"}}})
    result = await called(tool, {"n": 1})
    assert result.is_error
    assert "which is not in it" in result.text


@pytest.mark.parametrize(
    ("raises", "told"),
    [
        (RequestError("the page is gone"), "Error: the page is gone"),
        (ZeroDivisionError("secret path"), "Error: given failed; its error is in the server's log"),
        (TimeoutError("of its own"), "Error: given failed; its error is in the server's log"),
    ],
)
async def test_what_a_tool_raises_is_its_result(raises: Exception, told: str) -> None:
    assert await called(Given(raises=raises), {"n": 1}) == ToolResult(text=told, is_error=True)


async def test_what_a_broken_tool_says_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    await called(Given(raises=ZeroDivisionError("what ann said")), {"n": 1})
    (record,) = caplog.records
    assert "ann" not in TextFormatter().format(record)
    assert "ZeroDivisionError" in TextFormatter().format(record)


async def test_a_tool_that_takes_too_long_is_cancelled_and_says_so() -> None:
    result = await called(Given(waits=True), {"n": 1}, seconds=0.01)
    assert result.text == "Error: given was stopped: it took longer than the 0.01 s that it had"


async def test_calls_are_counted_by_how_they_ended() -> None:
    counted = CollectorRegistry()
    registry = ToolRegistry()
    registry.watch = ToolMetrics(counted).note
    registry.add(Given())
    registry.add(Given("slow", waits=True), seconds=0.01)
    registry.add(Given("broken", raises=ZeroDivisionError()))
    for name in ("given", "given", "slow", "broken", "none"):
        await registry.run(name, '{"n": 1}', SCOPE)

    def calls(tool: str, outcome: str) -> float | None:
        return counted.get_sample_value("weft_tool_calls_total", {"tool": tool, "outcome": outcome})

    assert (calls("given", "ok"), calls("slow", "timeout"), calls("broken", "error")) == (2, 1, 1)
    assert calls("none", "error") is None, "a name that the model made up is no label"


@pytest.mark.parametrize(
    "tool", [Given("two words"), Given("taken"), Given("x" * 129), Given(parameters={"type": "nothing"})]
)
def test_a_tool_that_cannot_be_offered_is_refused_at_the_start(tool: Given) -> None:
    registry = ToolRegistry([Given("taken")])
    with pytest.raises(ConfigError):
        registry.add(tool)


def test_groups_are_asked_for_as_one() -> None:
    registry = ToolRegistry([Given("alone")])
    registry.add(Given("a"), group="both")
    registry.add(Given("b"), group="both")
    assert registry.group("both") == ("a", "b")
    assert registry.group("alone") == ("alone",)
    assert [tool["function"]["name"] for tool in registry.offered(["b", "gone", "alone"])] == ["b", "alone"]
    registry.remove_group("both")
    assert registry.groups == ("alone",)
