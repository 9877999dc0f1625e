"""A conversation's messages as turns: what one user message led to, never parted.

system | user, assistant | user, assistant with calls, tool, tool, assistant | user ...
         `---- turn ---'   `------------------- turn ------------------'       `- the newest: the input
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from serving.errors import RequestError

Message = dict[str, Any]
_INSTRUCTIONS = ("system", "developer")


@dataclass(frozen=True, slots=True)
class Turn:
    """A user message and all that follows it up to the next one; or what comes before the first user message."""

    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    instructions: tuple[Message, ...]  # system and developer messages, from wherever they stood
    history: tuple[Turn, ...]
    newest: Turn  # the input, with the calls and results that it has led to so far


def conversation_of(messages: Sequence[Message]) -> Conversation:
    """Raises RequestError where there is no input, or a tool call and its result are not both there, in this order."""
    _check_pairs(messages)
    turns: list[list[Message]] = []
    for message in messages:
        if message["role"] in _INSTRUCTIONS:
            continue
        if message["role"] == "user" or not turns:
            turns.append([])
        turns[-1].append(message)
    if not turns:
        raise RequestError("messages must have an input, not instructions alone", param="messages")
    *history, newest = (Turn(tuple(turn)) for turn in turns)
    return Conversation(
        instructions=tuple(message for message in messages if message["role"] in _INSTRUCTIONS),
        history=tuple(history),
        newest=newest,
    )


def _check_pairs(messages: Sequence[Message]) -> None:
    """Every result answers a call of the assistant message before it, and every call has its result before another
    speaker's turn."""
    waiting: dict[str, int] = {}
    for index, message in enumerate(messages):
        if message["role"] == "tool":
            call_id = str(message.get("tool_call_id"))
            if call_id not in waiting:
                raise RequestError(
                    f"messages[{index}] is the result of the tool call {call_id[:100]!r}, which the assistant's "
                    "message before it does not make",
                    param=f"messages[{index}].tool_call_id",
                )
            del waiting[call_id]
            continue
        if waiting:
            break
        if message["role"] == "assistant":
            waiting = {str(call.get("id")): index for call in message.get("tool_calls") or ()}
    if waiting:
        call_id, index = next(iter(waiting.items()))
        raise RequestError(
            f"messages[{index}] calls a tool with id {call_id[:100]!r}, and no result of it follows",
            param=f"messages[{index}].tool_calls",
        )
