"""Tools of servers of the Model Context Protocol: named after their server, their results marked as data.

A result may say that what was asked for is not there yet. It is asked for again, with the same call.
"""

import json
from dataclasses import dataclass, replace
from typing import Any

from scripts.demo.dialogue import Episode, Exchange, Maker, ToolCall
from scripts.demo.dialogues.toolbox import KNOWN, Schema, Tool
from scripts.demo.dialogues.tools import unseen_tool, use
from scripts.demo.draw import Draw
from serving.orchestrator.marked_data import marked

PENDING = ["pending", "not ready", "not ready yet", "still running", "in progress", "pending, ask again", "try again"]


@dataclass(frozen=True)
class _Result:
    """What `marked` reads."""

    id: str
    text: str
    title: str = ""


def _tools(draw: Draw) -> list[Tool]:
    """One to three tools of one server."""
    label = draw.choice([draw.word, draw.thing])()
    drawn = [unseen_tool(draw) for _ in range(draw.choice([1, 1, 2, 3]))]
    if draw.chance(0.3):
        drawn[0] = draw.choice(KNOWN)
    named = [replace(tool, name=f"{label}__{tool.name}") for tool in drawn]
    return list({tool.description: tool for tool in {tool.name: tool for tool in named}.values()}.values())


def _titled(schema: Schema) -> Schema:
    """As the protocol's own package for Python writes it: a title for each parameter and one for all of them, which
    begins as the tool's name does."""
    function: Any = schema["function"]
    parameters = function["parameters"]
    properties = {
        key: dict(sorted({**entry, "title": key.replace("_", " ").title()}.items()))
        for key, entry in parameters["properties"].items()
    }
    name = function["name"].split("__")[-1]
    titled = dict(sorted({**parameters, "properties": properties, "title": f"{name}Arguments"}.items()))
    return {**schema, "function": {**function, "parameters": titled}}


def _call(call: ToolCall, text: str) -> ToolCall:
    return replace(call, result=marked(_Result(call.name, text), "result"))


def remote_use(draw: Draw, tool: Tool, waits: int) -> Exchange:
    """A call, after `waits` of the same that came too early."""
    plain = use(draw, tool)
    call = plain.calls[0]
    waited = []
    for _ in range(waits):
        word = draw.choice(PENDING)
        waited.append(_call(call, json.dumps({"status": word}) if draw.chance(0.4) else word))
    return replace(plain, calls=(*waited, _call(call, call.result)))


def remote_tools(draw: Draw) -> Episode:
    tools = _tools(draw)
    waits = draw.choice([0, 0, 0, 1, 1, 2, 3])
    exchange = remote_use(draw, tools[0], waits)
    draw.rng.shuffle(tools)
    schemas = [tool.schema(draw) for tool in tools]
    if draw.chance(0.4):
        schemas = [_titled(schema) for schema in schemas]
    return Episode("tools, remote", (exchange,), tools=tuple(schemas))


MAKERS: list[tuple[float, Maker]] = [(1.0, remote_tools)]
