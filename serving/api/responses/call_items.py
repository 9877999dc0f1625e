"""Calls as items of an output, in the form that OpenAI has for each kind, and as the events between.

A function is the client's. What runs here is shown as a file search, as code, as a web search, or else as the call of a
server's tool: name, arguments, output.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from serving.generation.answers.parts import ToolCall
from serving.orchestrator.tools.code_interpreter import KEPT
from serving.orchestrator.tools.registry import ToolResult
from serving.sessions.conversations.records import Item

FUNCTION = "function"
_KINDS = {
    "file_search": "file_search_call",
    "code_interpreter": "code_interpreter_call",
    "web_search": "web_search_call",
}
_RUNNING = {
    "file_search_call": "searching",
    "code_interpreter_call": "interpreting",
    "web_search_call": "searching",
}


@dataclass(frozen=True, slots=True)
class CallItem:
    """One call's way through an output. Each method changes `item`, and gives the events that tell of it."""

    item: Item
    position: int  # in the output

    @classmethod
    def begun(
        cls,
        label: str,
        call_id: str,
        name: str,
        position: int,
        new_id: Callable[[str], str],
        container_id: str | None = None,
    ) -> "CallItem":
        """`label`: FUNCTION, the kind, or the server that has the tool. `container_id`: that of programs; None: their
        files stay in the turn."""
        if label == FUNCTION:
            made: Item = {"id": new_id("fc"), "type": "function_call", "call_id": call_id, "name": name}
            return cls({**made, "arguments": "", "status": "in_progress"}, position)
        hidden = {"_call_id": call_id, "_name": name, "_arguments": ""}
        made = {"type": _KINDS.get(label, "mcp_call"), "status": "in_progress", **hidden}
        match made["type"]:
            case "file_search_call":
                made |= {"id": new_id("fs"), "queries": [], "results": None}
            case "code_interpreter_call":
                made |= {"id": new_id("ci"), "code": None, "outputs": None, "files": []}
                made["container_id"] = container_id or f"cntr_{call_id}"
            case "web_search_call":
                made |= {"id": new_id("ws"), "action": {"type": "search", "query": ""}}
            case _:
                made |= {"id": new_id("mcp"), "name": name, "server_label": label, "arguments": ""}
                made |= {"output": None, "error": None}
        return cls(made, position)

    @property
    def _kind(self) -> str:
        return self.item["type"]

    def told_begun(self) -> Iterator[dict[str, Any]]:
        if self._kind != "function_call":
            yield self._event(f"response.{self._kind}.in_progress")

    def arguments(self, text: str) -> Iterator[dict[str, Any]]:
        if self._kind == "function_call":
            yield {**self._event("response.function_call_arguments.delta"), "delta": text}
        elif self._kind == "mcp_call":
            yield {**self._event("response.mcp_call_arguments.delta"), "delta": text}

    def ready(self, call: ToolCall) -> Iterator[dict[str, Any]]:
        if self._kind == "function_call":
            self.item.update(arguments=call.arguments, status="completed")
            told = {"name": call.name, "arguments": call.arguments}
            yield {**self._event("response.function_call_arguments.done"), **told}
            return
        self.item["_arguments"] = call.arguments
        asked = _object(call.arguments)
        match self._kind:
            case "mcp_call":
                self.item["arguments"] = call.arguments
                yield {**self._event("response.mcp_call_arguments.done"), "arguments": call.arguments}
                return
            case "file_search_call":
                self.item["queries"] = _queries(asked)
            case "web_search_call" if "url" in asked:
                self.item["action"] = {"type": "open_page", "url": str(asked["url"])}
            case "web_search_call":
                queries = _queries(asked)
                self.item["action"] = {"type": "search", "query": " ".join(queries), "queries": queries}
            case "code_interpreter_call":
                code = self.item["code"] = str(asked.get("code", ""))
                yield {**self._event("response.code_interpreter_call_code.delta"), "delta": code}
                yield {**self._event("response.code_interpreter_call_code.done"), "code": code}
        yield self._event(f"response.{self._kind}.{_RUNNING[self._kind]}")

    def result(self, result: ToolResult) -> Iterator[dict[str, Any]]:
        """Of what ran here; and of a function's call that nobody is to answer any more."""
        self.item.update(_result=result.text, _harmless=result.harmless)
        if self._kind == "function_call":
            self.item["status"] = "incomplete"
            return
        self.item["status"] = "failed" if result.is_error else "completed"
        match self._kind:
            case "mcp_call" if result.is_error:
                content = [{"type": "text", "text": result.text}]
                self.item["error"] = {"type": "mcp_tool_execution_error", "content": content}
            case "mcp_call":
                self.item["output"] = result.text
            case "file_search_call":
                self.item["results"] = result.facts.get("results", [])
            case "code_interpreter_call":
                self.item["outputs"] = [{"type": "logs", "logs": result.text}]
                self.item["files"] = result.facts.get(KEPT, [])
        failed = result.is_error and self._kind == "mcp_call"  # the others have no such event
        yield self._event(f"response.{self._kind}.{'failed' if failed else 'completed'}")

    def _event(self, kind: str) -> dict[str, Any]:
        return {"type": kind, "item_id": self.item["id"], "output_index": self.position}


def interrupted(item: Item, why: str) -> Item:
    """An item whose making was broken off: a call that may have run has a result that says so, so that no call is
    without one, and none is made twice."""
    if item["status"] in ("completed", "failed", "incomplete"):
        return item
    made = {**item, "status": "incomplete"}
    if "_call_id" in item:
        made["_result"] = f"Error: {why}"
    return made


def unanswered(item: Item, why: str) -> Item:
    """An item of a response that did not come to its end, whose client is not to run functions for it: as the one of
    `interrupted`, and a whole call of a function has a result too, unless the client sends one after all."""
    if item["type"] == "function_call" and item["status"] == "completed":
        return {**item, "status": "incomplete", "_result": "Error: not run: the response was ended before"}
    return interrupted(item, why)


def _object(arguments: str) -> dict[str, Any]:
    parsed = json.loads(arguments)
    return parsed if isinstance(parsed, dict) else {}


def _queries(asked: dict[str, Any]) -> list[str]:
    """Before the arguments are checked: a model writes what it likes."""
    several = asked.get("queries")
    given = [asked.get("query"), *(several if isinstance(several, list) else ())]
    return [str(query) for query in given if query]
