"""The answer to POST /v1/messages: content blocks, whole or as events.

message_start
content_block_start, content_block_delta ..., content_block_stop     for each block of text, and each call
message_delta                                                        why it ended, and the usage
message_stop
"""

import hashlib
import itertools
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import msgspec

from serving.api.caller import Caller
from serving.api.chat_reply import text_request
from serving.api.chunks import encode
from serving.api.generation import Generation
from serving.api.messages.body import THEIR_WORDS, MessagesBody
from serving.api.reply_parts import fallback_of, flagged
from serving.api.service import Service
from serving.engine.request import FinishReason
from serving.generation.answers.delta_reader import DeltaReader
from serving.generation.answers.parts import Reasoning, ToolCall
from serving.generation.request import TextDelta

Event = dict[str, Any]


class MessagesReply:
    """One request's answer, streamed or whole."""

    def __init__(self, service: Service, body: MessagesBody, caller: Caller) -> None:
        """Raises RequestError for what the body asks for and this model cannot do."""
        chat = body.chat()
        if chat.offered_tools is not None:
            service.check_tool_format(body.model)
        user = (body.metadata and body.metadata.user_id) or ""
        request = replace(text_request(chat, caller.request_id), model=body.model, user=user)
        self.generation = Generation(service, [request], caller, stream=bool(body.stream), client_names=THEIR_WORDS)
        self._id = f"msg_{caller.request_id}"
        self._blocks = Blocks(self._id, tools=chat.offered_tools)

    async def whole(self) -> bytes:
        content: list[dict[str, Any]] = []
        end: Event = {}
        async with aclosing(self._events()) as events:
            async for event in events:
                _collect(content, event)
                if event["type"] == "message_delta":
                    end = event
        return encode({**self._message(), "content": content, **end["delta"], "usage": end["usage"]})

    async def events(self) -> AsyncGenerator[bytes, None]:
        async with aclosing(self._events()) as events:
            async for event in events:
                yield event_frame(event)

    async def _events(self) -> AsyncGenerator[Event, None]:
        started = False
        async with aclosing(self.generation.deltas()) as deltas:
            async for _, delta in deltas:
                if not started:
                    started = True
                    yield {"type": "message_start", "message": {**self._message(), "usage": _usage(delta, output=0)}}
                for event in self._blocks.show(delta):
                    yield event
                if delta.finish_reason is not None:
                    end = self._blocks.end(delta) | flagged(delta.flags)
                    usage = _usage(delta, thinking=self._blocks.thinking_tokens)
                    yield {"type": "message_delta", "delta": end, "usage": usage}
        yield {"type": "message_stop"}

    def _message(self) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self.generation.model,
            **fallback_of(self.generation),
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
        }


class Blocks:
    """What has become certain of the answer, as the events of its blocks."""

    def __init__(self, reply_id: str, *, tools: Sequence[dict[str, Any]] | None) -> None:
        self._reader = DeltaReader(tools, (_call_id(reply_id, number) for number in itertools.count()))
        self._index = -1
        self._open = ""  # the type of the block that is open

    @property
    def thinking_tokens(self) -> int:
        return self._reader.reasoning_tokens

    def show(self, delta: TextDelta) -> Iterator[Event]:
        for part in self._reader.read(delta).parts:
            yield from self._call(part) if isinstance(part, ToolCall) else self._said(part)
        if delta.finish_reason is not None:
            yield from self._close()

    def end(self, delta: TextDelta) -> dict[str, Any]:
        if delta.finish_reason is FinishReason.CONTENT_FILTER:
            return {"stop_reason": "refusal", "stop_sequence": None}
        if delta.finish_reason is not FinishReason.STOP:
            return {"stop_reason": "max_tokens", "stop_sequence": None}
        if self._reader.calls_made:
            return {"stop_reason": "tool_use", "stop_sequence": None}
        stop = delta.stop_reason
        return {"stop_reason": "end_turn" if stop is None else "stop_sequence", "stop_sequence": stop}

    def _said(self, part: str | Reasoning) -> Iterator[Event]:
        kind, text = ("thinking", part.text) if isinstance(part, Reasoning) else ("text", part)
        if self._open != kind:
            yield from self._close()
            self._open = kind
            yield self._start({"type": kind, kind: "", **({"signature": ""} if kind == "thinking" else {})})
        yield self._delta({"type": f"{kind}_delta", kind: text})

    def _call(self, call: ToolCall) -> Iterator[Event]:
        yield from self._close()
        yield self._start({"type": "tool_use", "id": call.id, "name": call.name, "input": {}})
        yield self._delta({"type": "input_json_delta", "partial_json": call.arguments})
        yield {"type": "content_block_stop", "index": self._index}

    def _close(self) -> Iterator[Event]:
        if self._open:
            self._open = ""
            yield {"type": "content_block_stop", "index": self._index}

    def _start(self, block: dict[str, Any]) -> Event:
        self._index += 1
        return {"type": "content_block_start", "index": self._index, "content_block": block}

    def _delta(self, delta: dict[str, Any]) -> Event:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}


def event_frame(event: Event) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), encode(event))


def _collect(content: list[dict[str, Any]], event: Event) -> None:
    """A whole answer is its stream, joined."""
    if event["type"] == "content_block_start":
        content.append(event["content_block"])
    elif event["type"] == "content_block_delta":
        delta = event["delta"]
        if delta["type"] in ("text_delta", "thinking_delta"):
            kind = content[-1]["type"]
            content[-1][kind] += delta[kind]
        else:
            content[-1]["input"] = msgspec.json.decode(delta["partial_json"])


def _usage(delta: TextDelta, *, output: int | None = None, thinking: int = 0) -> dict[str, Any]:
    """Anthropic's input_tokens are those that no cache had. What the model thought is told where it did."""
    used = delta.usage
    return {
        "input_tokens": used.prompt_tokens - used.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": used.cached_tokens,
        "output_tokens": used.completion_tokens if output is None else output,
        **({"output_tokens_details": {"thinking_tokens": thinking}} if thinking else {}),
    }


def _call_id(reply_id: str, number: int) -> str:
    return f"toolu_{hashlib.blake2b(f'{reply_id}:{number}'.encode(), digest_size=12).hexdigest()}"
