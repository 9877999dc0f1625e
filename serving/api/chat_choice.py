"""One choice of a chat answer: its text, and the tool calls in it."""

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from serving.api.reply_parts import Logprobs, chat_logprobs, flagged
from serving.engine.request import FinishReason
from serving.generation.answers.delta_reader import DeltaReader
from serving.generation.answers.parts import ToolCall
from serving.generation.request import TextDelta, TextLogprobs


@dataclass(frozen=True, slots=True)
class Seen:
    """What one delta shows to the client."""

    content: str
    reasoning: str = ""
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    finish_reason: str | None = None


class ChatChoice:
    def __init__(
        self, index: int, *, tools: Sequence[dict[str, Any]] | None, reply_id: str, include_reasoning: bool = True
    ) -> None:
        """A call's id follows from `reply_id`, so that all readers of one reply see the same."""
        self._index = index
        self._reader = DeltaReader(tools, (_call_id(reply_id, index, number) for number in itertools.count()))
        self._include_reasoning = include_reasoning
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._tool_calls: list[dict[str, Any]] = []
        self._logprobs: list[TextLogprobs] = []
        self._token_ids: list[int] = []
        self._finish_reason: str | None = None
        self._stop_reason: str | int | None = None
        self._flags: tuple[tuple[str, float], ...] = ()
        self.prompt_logprobs: Logprobs = ()

    @property
    def reasoning_tokens(self) -> int:
        return self._reader.reasoning_tokens

    def show(self, delta: TextDelta) -> Seen:
        """For a stream: what has become certain, each call whole and with its index."""
        parsed = self._reader.read(delta)
        reasoning = parsed.reasoning if self._include_reasoning else ""
        calls = [_call(call) for call in parsed.tool_calls]
        return Seen(parsed.content, reasoning, calls, self._reason(delta.finish_reason))

    def keep(self, delta: TextDelta) -> None:
        """For a whole reply."""
        seen = self.show(delta)
        self._content.append(seen.content)
        self._reasoning.append(seen.reasoning)
        self._tool_calls += [{key: call[key] for key in ("id", "type", "function")} for call in seen.tool_calls]
        self._logprobs += delta.logprobs
        self._token_ids += delta.token_ids
        if delta.prompt_logprobs is not None:
            self.prompt_logprobs = delta.prompt_logprobs
        if seen.finish_reason is not None:
            self._finish_reason, self._stop_reason, self._flags = seen.finish_reason, delta.stop_reason, delta.flags

    def reply(self, *, logprobs: bool, token_ids: bool) -> dict[str, Any]:
        text = "".join(self._content)
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if reasoning := "".join(self._reasoning):
            message["reasoning_content"] = reasoning
        if self._tool_calls:
            message |= {"content": text or None, "tool_calls": self._tool_calls}
        choice: dict[str, Any] = {
            "index": self._index,
            "message": message,
            "logprobs": chat_logprobs(tuple(self._logprobs)) if logprobs else None,
            "finish_reason": self._finish_reason,
            "stop_reason": self._stop_reason,
            **flagged(self._flags),
        }
        if token_ids:
            choice["token_ids"] = self._token_ids
        return choice

    def _reason(self, reason: FinishReason | None) -> str | None:
        if reason is FinishReason.STOP and self._reader.calls_made:
            return "tool_calls"
        return reason.value if reason else None


def _call_id(reply_id: str, choice: int, number: int) -> str:
    return f"call_{hashlib.blake2b(f'{reply_id}:{choice}:{number}'.encode(), digest_size=12).hexdigest()}"


def _call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"index": call.index, "id": call.id, "type": "function", "function": function}
