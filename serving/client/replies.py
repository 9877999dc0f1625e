"""What comes back, as plain values."""

from dataclasses import dataclass
from typing import Any

from serving.client import schema

_FINISH_REASONS = {
    word.number: word.name.removeprefix("FINISH_REASON_").lower() for word in schema.FinishReason.values if word.number
}


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens."""

    prompt_tokens: int
    cached_tokens: int  # of the prompt's
    completion_tokens: int
    reasoning_tokens: int = 0  # of the completion's


@dataclass(frozen=True, slots=True)
class ToolCall:
    id: str
    name: str
    arguments: str  # JSON, as the model wrote it


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Of the raw logits: before penalties and temperature."""

    token_id: int
    text: str
    token_bytes: bytes
    logprob: float
    rank: int  # 1 is the likeliest
    top: tuple[tuple[int, str, float], ...]  # token id, text, logprob; the likeliest first


@dataclass(frozen=True, slots=True)
class Choice:
    """Of a chunk: what is new of it."""

    index: int
    text: str
    tool_calls: tuple[ToolCall, ...]
    finish_reason: str | None  # stop, length, tool_calls, abort, timeout, content_filter
    stop_reason: str | int | None  # the stop string, or the entry of stop_token_ids
    token_ids: tuple[int, ...]  # with return_token_ids
    logprobs: tuple[TokenLogprobs, ...]
    flags: tuple[tuple[str, float], ...] = ()  # with the finish_reason: what moderation noted, category and score
    reasoning: str = ""  # what the model thinks before it answers


@dataclass(frozen=True, slots=True)
class Fallback:
    """Another model answers than the one that was asked."""

    asked: str
    answered_by: str
    reason: str  # engine_down, engine_full


@dataclass(frozen=True, slots=True)
class Reply:
    id: str
    model: str
    created: int  # seconds since 1970
    choices: tuple[Choice, ...]
    usage: Usage
    prompt_token_ids: tuple[int, ...]  # with return_token_ids
    prompt_logprobs: tuple[TokenLogprobs, ...]  # from the prompt's second token on
    system_fingerprint: str | None = None  # of the weights that drew the last token
    fallback: Fallback | None = None

    @property
    def text(self) -> str:
        """Of the first choice."""
        return self.choices[0].text


@dataclass(frozen=True, slots=True)
class Chunk:
    choices: tuple[Choice, ...]
    usage: Usage | None  # the last chunk has it
    prompt_token_ids: tuple[int, ...]  # with return_token_ids, in the first chunk
    system_fingerprint: str | None = None  # in the last chunk: of the weights that drew the last token
    fallback: Fallback | None = None  # in the first chunk

    @property
    def text(self) -> str:
        """What is new of the first choice."""
        return "".join(choice.text for choice in self.choices if choice.index == 0)


@dataclass(frozen=True, slots=True)
class Model:
    id: str
    created: int  # seconds since 1970
    owned_by: str
    max_model_len: int  # tokens, of prompt and output together


@dataclass(frozen=True, slots=True)
class Embeddings:
    model: str
    vectors: tuple[tuple[float, ...], ...]  # in the order of the texts
    prompt_tokens: int  # of all texts


def embeddings_of(message: Any) -> Embeddings:
    vectors = tuple(tuple(vector.values) for vector in message.embeddings)
    return Embeddings(message.model, vectors, message.prompt_tokens)


def reply_of(message: Any) -> Reply:
    return Reply(
        id=message.id,
        model=message.model,
        created=message.created,
        choices=tuple(map(_choice, message.choices)),
        usage=_usage(message.usage),
        prompt_token_ids=tuple(message.prompt_token_ids),
        prompt_logprobs=tuple(map(_logprobs, message.prompt_logprobs)),
        system_fingerprint=message.system_fingerprint or None,
        fallback=_fallback(message),
    )


def chunk_of(message: Any) -> Chunk:
    return Chunk(
        choices=tuple(map(_choice, message.choices)),
        usage=_usage(message.usage) if message.HasField("usage") else None,
        prompt_token_ids=tuple(message.prompt_token_ids),
        system_fingerprint=message.system_fingerprint or None,
        fallback=_fallback(message),
    )


def model_of(message: Any) -> Model:
    return Model(message.id, message.created, message.owned_by, message.max_model_len)


def _choice(message: Any) -> Choice:
    stop = message.WhichOneof("stop_reason")
    return Choice(
        index=message.index,
        text=message.text,
        tool_calls=tuple(ToolCall(c.id, c.function.name, c.function.arguments) for c in message.tool_calls),
        finish_reason=_FINISH_REASONS.get(message.finish_reason),
        stop_reason=None if stop is None else getattr(message, stop),
        token_ids=tuple(message.token_ids),
        logprobs=tuple(map(_logprobs, message.logprobs)),
        flags=tuple((flag.category, flag.score) for flag in message.flags),
        reasoning=message.reasoning,
    )


def _fallback(message: Any) -> Fallback | None:
    if not message.HasField("fallback"):
        return None
    told = message.fallback
    return Fallback(asked=told.asked, answered_by=told.answered_by, reason=told.reason)


def _usage(message: Any) -> Usage:
    return Usage(
        prompt_tokens=message.prompt_tokens,
        cached_tokens=message.cached_tokens,
        completion_tokens=message.completion_tokens,
        reasoning_tokens=message.reasoning_tokens,
    )


def _logprobs(message: Any) -> TokenLogprobs:
    return TokenLogprobs(
        token_id=message.token.id,
        text=message.token.text,
        token_bytes=message.token.bytes,
        logprob=message.logprob,
        rank=message.rank,
        top=tuple((top.token.id, top.token.text, top.logprob) for top in message.top),
    )
