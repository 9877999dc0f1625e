"""One measured request to an OpenAI-compatible server."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from serving.bench.stream_client import StreamClient
from serving.bench.workload import Item


@dataclass(slots=True)
class Measured:
    """Times are perf_counter seconds. `error` is its kind, or None where the stream came to its end."""

    sent: float
    chunks: list[float] = field(default_factory=list)  # when each piece of text arrived
    ended: float = 0.0
    tokens: int = 0  # by the server's usage, else as many as chunks
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    error: str | None = None
    detail: str = ""  # of the error


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None  # the same, as newer versions of vLLM call it


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _PromptDetails | None = None


class _Error(msgspec.Struct):
    message: str = ""
    type: str | None = None
    code: str | int | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: _Error | None = None


_decode = msgspec.json.Decoder(_Chunk).decode
_encode = msgspec.json.Encoder().encode


class Target:
    def __init__(
        self,
        client: StreamClient,
        model: str,
        *,
        text_prompts: bool,
        timeout_seconds: float | None = None,
        extra_body: Mapping[str, object] | None = None,
    ) -> None:
        """`text_prompts`: chat completions with nothing beyond OpenAI's own fields, for servers that take no token ids;
        the server may then end a stream early. `extra_body`: fields added to each request, over the benchmark's own."""
        self._client = client
        self._model = model
        self._text_prompts = text_prompts
        self._timeout_seconds = timeout_seconds
        self._extra_body = dict(extra_body or {})
        self._path = "/v1/chat/completions" if text_prompts else "/v1/completions"

    async def run(self, item: Item) -> Measured:
        """Never raises for what the server or the network does: that is part of the measurement."""
        body = _encode({**self._body(item), **self._extra_body})
        measured = Measured(time.perf_counter())
        reading = _Reading(measured)
        try:
            async with asyncio.timeout(self._timeout_seconds):
                reply = await self._client.post(self._path, body, reading.event)
        except OSError as error:  # TimeoutError is one
            _fail(measured, type(error).__name__, str(error) or self._untold(error))
        else:
            if reply.status != 200:
                _fail(measured, f"HTTP {reply.status}", _message(reply.body))
            elif not reading.finished and measured.error is None:
                _fail(measured, "cut off", "the stream ended without a finish_reason")
        measured.ended = time.perf_counter()
        if not reading.has_usage:
            measured.tokens = len(measured.chunks)
        return measured

    def _untold(self, error: OSError) -> str:
        """Of an error without a text: the end of one's own patience is such a one."""
        if isinstance(error, TimeoutError) and self._timeout_seconds is not None:
            return f"the reply had not ended after {self._timeout_seconds:g} s (--timeout)"
        return ""

    def _body(self, item: Item) -> dict[str, object]:
        common: dict[str, object] = {
            "model": self._model,
            "max_tokens": item.output_len,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self._text_prompts:
            return {**common, "messages": [{"role": "user", "content": item.text}]}
        return {**common, "prompt": item.token_ids, "ignore_eos": True, "min_tokens": item.output_len}


class _Reading:
    """The events of one stream."""

    def __init__(self, measured: Measured) -> None:
        self.finished = False
        self.has_usage = False
        self._measured = measured

    def event(self, now: float, payload: bytes) -> None:
        if payload == b"[DONE]":
            return
        try:
            chunk = _decode(payload)
        except msgspec.DecodeError as error:
            _fail(self._measured, "malformed", str(error))
            return
        if chunk.error is not None:
            _fail(self._measured, str(chunk.error.code or chunk.error.type or "error"), chunk.error.message)
        for choice in chunk.choices:
            if _carries_text(choice):
                self._measured.chunks.append(now)
            self.finished |= choice.finish_reason is not None
        if chunk.usage is not None:
            self.has_usage = True
            self._measured.tokens = chunk.usage.completion_tokens
            self._measured.prompt_tokens = chunk.usage.prompt_tokens
            if chunk.usage.prompt_tokens_details is not None:
                self._measured.cached_tokens = chunk.usage.prompt_tokens_details.cached_tokens


def _carries_text(choice: _Choice) -> bool:
    """Half a character shows as an empty text of a completion, and is a token; an empty last chunk is none, and a chat
    begins with a chunk that only names the role."""
    if choice.delta is not None:
        delta = choice.delta
        return bool(delta.content or delta.reasoning_content or delta.reasoning)
    return bool(choice.text) or choice.finish_reason is None


def _fail(measured: Measured, kind: str, detail: str) -> None:
    measured.error, measured.detail = kind, detail


def _message(body: bytes) -> str:
    try:
        error = _decode(body).error
    except msgspec.DecodeError:
        error = None
    return error.message if error is not None else body[:200].decode("utf-8", "replace")
