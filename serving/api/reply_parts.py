"""Members that the replies of chat and text completions share."""

from dataclasses import replace
from typing import Any, Protocol

from serving.gateway.fallback import Fallback
from serving.generation.request import TextLogprobs, TokenText

LOWEST_LOGPROB = -9999.0  # JSON has no -Infinity; this is what OpenAI sends for it


class Used(Protocol):
    """Tokens of a request or of a choice."""

    @property
    def prompt_tokens(self) -> int: ...
    @property
    def completion_tokens(self) -> int: ...
    @property
    def cached_tokens(self) -> int: ...
    @property
    def guessed_tokens(self) -> int: ...
    @property
    def accepted_tokens(self) -> int: ...


Logprobs = tuple[TextLogprobs | None, ...]


class Answered(Protocol):
    @property
    def fallback(self) -> Fallback | None: ...


def fallback_of(answered: Answered) -> dict[str, Any]:
    """The member that says of another model than the asked one that it answers; nothing where none does."""
    return {} if answered.fallback is None else {"fallback": answered.fallback.facts}


def flagged(flags: tuple[tuple[str, float], ...]) -> dict[str, Any]:
    """What moderation noted of a choice, in its last chunk; nothing where it noted nothing."""
    return {"moderation": dict(flags)} if flags else {}


def usage(
    prompt_tokens: int,
    completion_tokens: int,
    cached_tokens: int,
    guessed_tokens: int = 0,
    accepted_tokens: int = 0,
    reasoning_tokens: int = 0,
) -> dict[str, Any]:
    """What speculation guessed is told under OpenAI's names for predicted outputs, where it guessed anything; what
    the model reasoned, where it did."""
    details: dict[str, int] = {}
    if guessed_tokens:
        details["accepted_prediction_tokens"] = accepted_tokens
        details["rejected_prediction_tokens"] = guessed_tokens - accepted_tokens
    if reasoning_tokens:
        details["reasoning_tokens"] = reasoning_tokens
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
        **({"completion_tokens_details": details} if details else {}),
    }


def usage_of(used: Used, reasoning_tokens: int = 0) -> dict[str, Any]:
    return usage(
        used.prompt_tokens,
        used.completion_tokens,
        used.cached_tokens,
        used.guessed_tokens,
        used.accepted_tokens,
        reasoning_tokens,
    )


def chat_logprobs(entries: tuple[TextLogprobs, ...]) -> dict[str, Any]:
    content = [
        {**_chat_token(entry.token, entry.logprob), "top_logprobs": [_chat_token(*top) for top in entry.top]}
        for entry in entries
    ]
    return {"content": content, "refusal": None}


def text_logprobs(entries: Logprobs, offsets: list[int], first: str = "") -> dict[str, Any]:
    """OpenAI's older shape. `offsets` are where the tokens begin in the choice's text, which their own texts do not
    tell: a part of a character reads U+FFFD and the whole is one, a special token may be left out. `first` is the text
    of an echoed prompt's first token, which has no log-probability."""
    return {
        "text_offset": offsets,
        "token_logprobs": [finite(entry.logprob) if entry else None for entry in entries],
        "tokens": [entry.token.token if entry else first for entry in entries],
        "top_logprobs": [_top_by_text(entry) if entry else None for entry in entries],
    }


def prompt_logprobs(entries: Logprobs) -> list[dict[str, Any] | None]:
    """vLLM's shape: for each prompt token, candidates by token id; null for the first."""
    return [_by_token_id(entry) if entry else None for entry in entries]


def likeliest(entries: Logprobs, count: int) -> Logprobs:
    """The same entries with `count` alternatives each."""
    return tuple(entry and replace(entry, top=entry.top[:count]) for entry in entries)


def finite(logprob: float) -> float:
    return max(logprob, LOWEST_LOGPROB)


def _chat_token(token: TokenText, logprob: float) -> dict[str, Any]:
    return {"token": token.token, "logprob": finite(logprob), "bytes": list(token.token_bytes)}


def _top_by_text(entry: TextLogprobs) -> dict[str, float]:
    """Several tokens may read the same (parts of a character); the likeliest of them counts, and the sampled one."""
    top: dict[str, float] = {}
    for token, logprob in entry.top:
        top.setdefault(token.token, finite(logprob))
    top.setdefault(entry.token.token, finite(entry.logprob))
    return top


def _by_token_id(entry: TextLogprobs) -> dict[str, Any]:
    found = {
        str(token.token_id): {"logprob": finite(logprob), "rank": rank, "decoded_token": token.token}
        for rank, (token, logprob) in enumerate(entry.top, start=1)
    }
    actual = {"logprob": finite(entry.logprob), "rank": entry.rank, "decoded_token": entry.token.token}
    return found | {str(entry.token.token_id): actual}
