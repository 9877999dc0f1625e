"""What may be looked up: a chat of one turn, and all that two such must share for one answer to serve both."""

import hashlib
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from serving.generation.request import PreparedPrompt, TextRequest

_encode = msgspec.json.Encoder(order="deterministic").encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Two questions with the same `key` differ in the user's text alone."""

    key: bytes
    tenant: str
    weights: str  # the version that would answer now
    text: str

    @property
    def digest(self) -> bytes:
        return hashlib.blake2b(self.text.encode(errors="surrogatepass"), digest_size=16).digest()


def is_single_turn(request: TextRequest, max_temperature: float | None, temperature: float) -> bool:
    """One user message, perhaps one of the operator's before it, and an answer in free text; of no adapter, whose
    version the weights' one does not tell."""
    options, messages = request.options, request.messages or []
    roles = [message.get("role") for message in messages]
    return (
        roles[-1:] == ["user"]
        and roles[:-1] in ([], ["system"], ["developer"])
        and bool(_text(messages[-1]).strip())
        and request.add_generation_prompt
        and not (request.tools or request.calls or request.grammar or request.adapter)
        and options.n == 1
        and options.logprobs is None
        and options.prompt_logprobs is None
        and (max_temperature is None or temperature <= max_temperature)
    )


def question_of(request: TextRequest, prepared: PreparedPrompt, *, tenant: str, weights: str) -> Question:
    """Of a single turn, for the one model that is served. A seed that the client chose is part of the key; one that was
    drawn is not, nor is a limit that only the window set."""
    user = request.messages[-1] if request.messages else {}
    sampling = asdict(prepared.sampling)
    sampling["seed"] = request.options.seed
    if not prepared.max_tokens_stated:
        sampling["max_tokens"] = None
    shared: list[Any] = [
        tenant,
        weights,
        (request.messages or [])[:-1],
        {name: value for name, value in user.items() if name != "content"},
        dict(request.chat_template_kwargs),
        request.reasoning_effort,
        request.add_special_tokens,
        request.cache_salt,
        sampling,
        prepared.stop,
        prepared.include_stop_str_in_output,
        prepared.skip_special_tokens,
    ]
    key = hashlib.blake2b(_encode(shared), digest_size=16).digest()
    return Question(key=key, tenant=tenant, weights=weights, text=_text(user))


def _text(message: dict[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content or [])
