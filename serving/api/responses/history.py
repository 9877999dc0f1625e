"""Items as the messages of a chat.

One answer of the model is one message, with its text and its calls, so that a conversation that goes on has the prompt
that it had, and shares its pages. Which items were one answer is written down where the server made them; else calls
that follow each other are one.
"""

import json
from collections.abc import Iterable, Sequence, Set
from typing import Any

from serving.generation.answers.parts import ToolCall
from serving.orchestrator.tools.registry import ToolResult
from serving.orchestrator.turn_calls import assistant_message, result_message
from serving.orchestrator.turns import Message
from serving.sessions.conversations.records import Item

NOT_SENT = "the result is not in the conversation"
_CALLS = ("function_call", "mcp_call", "file_search_call", "code_interpreter_call", "web_search_call")


def chat_messages(instructions: str | None, items: Iterable[Item]) -> list[Message]:
    messages: list[Message] = [] if instructions is None else [{"role": "system", "content": instructions}]
    items = list(items)
    answered = {item["call_id"] for item in items if item["type"] == "function_call_output"}
    answer = _Answer(answered)
    for item in items:
        is_answer = item["type"] == "message" and item["role"] == "assistant"
        if is_answer or item["type"] in ("reasoning", *_CALLS):
            if not answer.takes(item):
                messages += answer.messages()
                answer = _Answer(answered)
            answer.add(item)
            continue
        messages += answer.messages()
        answer = _Answer(answered)
        if item["type"] == "function_call_output":
            text = item["output"] if isinstance(item["output"], str) else _joined(item["output"])
            messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": text})
        else:
            messages.append({"role": item["role"], "content": _joined(item["content"])})
    return [*messages, *answer.messages()]


class _Answer:
    """One of the model's, as far as it is read. `answered`: the calls that have a result of the client's."""

    def __init__(self, answered: Set[str]) -> None:
        self._answered = answered
        self._number: str | None = None
        self._thoughts: list[str] = []
        self._texts: list[str] = []
        self._calls: list[ToolCall] = []
        self._results: list[Message] = []
        self._is_empty = True

    def takes(self, item: Item) -> bool:
        if self._is_empty:
            return True
        number = item.get("_answer")
        if number is not None or self._number is not None:
            return number == self._number
        return item["type"] in _CALLS or (item["type"] == "message" and not self._texts and not self._calls)

    def add(self, item: Item) -> None:
        self._is_empty = False
        self._number = item.get("_answer")
        if item["type"] == "reasoning":
            self._thoughts += [part["text"] for part in item.get("content") or ()]
            return
        if item["type"] == "message":
            self._texts.append(item.get("_text") or _joined(item["content"]))
            return
        call, result = _call(item, self._answered)
        self._calls.append(call)
        if result is not None:
            kept = ToolResult(text=result, harmless=item.get("_harmless", False))
            self._results.append(result_message(call, kept))

    def messages(self) -> list[Message]:
        if self._is_empty:
            return []
        if not (self._texts or self._calls):
            return []  # reasoning that came to no answer
        return [assistant_message("".join(self._texts), self._calls, "\n".join(self._thoughts)), *self._results]


def _joined(parts: str | Sequence[dict[str, Any]]) -> str:
    if isinstance(parts, str):
        return parts
    return "\n".join(part.get("text") or part.get("refusal") or "" for part in parts)


def _call(item: Item, answered: Set[str]) -> tuple[ToolCall, str | None]:
    """The call, and its result where it ran here, or where the turn ended so that nobody was asked for one."""
    if item["type"] == "function_call":
        call = ToolCall(index=0, id=item["call_id"], name=item["name"], arguments=item["arguments"])
        is_open = item.get("status") != "incomplete" or item["call_id"] in answered
        return call, None if is_open else item.get("_result", NOT_SENT)
    name, arguments, result = _seen(item)
    call = ToolCall(
        index=0,
        id=item.get("_call_id", item["id"]),
        name=item.get("_name", name),
        arguments=item.get("_arguments", arguments),
    )
    return call, item.get("_result", result)


def _seen(item: Item) -> tuple[str, str, str]:
    """Name, arguments and result of a call that ran here, as far as a client knows them who sends it back."""
    match item["type"]:
        case "mcp_call":
            error = item.get("error")
            failure = error.get("content") if isinstance(error, dict) else error
            return item["name"], item["arguments"], str(item.get("output") or failure or NOT_SENT)
        case "file_search_call":
            found = [str(result.get("text", "")) for result in item.get("results") or ()]
            query = " ".join(item["queries"])
            return "file_search", json.dumps({"query": query}, ensure_ascii=False), "\n\n".join(found) or NOT_SENT
        case "code_interpreter_call":
            logs = [str(output.get("logs", "")) for output in item.get("outputs") or ()]
            return "code_interpreter", json.dumps({"code": item.get("code") or ""}), "\n".join(logs) or NOT_SENT
        case _:
            query = str(item["action"].get("query", ""))
            return "web_search", json.dumps({"query": query}, ensure_ascii=False), NOT_SENT
