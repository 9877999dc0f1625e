"""What is asked of who embeds, and who answers: token ids in, one vector a text out."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from serving.engine.request import TokenEvent
from serving.errors import ContextLengthError, RequestError

Texts = tuple[tuple[int, ...], ...]
_SHORTEST = 1e-12  # a vector shorter than that is not made longer


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedRequest:
    request_id: str
    texts: Texts  # token ids, special ones included; none is empty
    model: str = ""  # the served one's name; "": the encoder
    tenant: str = ""  # as of a GenerateRequest, these three
    tenant_weight: float = 1.0
    cache_salt: str = ""

    @property
    def tokens(self) -> int:
        return sum(map(len, self.texts))


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFacts:
    """What whoever embeds says of texts and vectors."""

    dimensions: int
    vocab_size: int
    max_tokens: int  # of a text, special ones included
    reader: str = "the encoder"  # in words for clients
    min_dimensions: int | None = None  # that a client may cut its vectors to; None: they are not cut
    unit: bool = True  # vectors have length 1

    def cut(self, vectors: np.ndarray, dimensions: int | None) -> np.ndarray:
        """[texts, dimensions] of whole vectors: their first numbers, of length 1 again where the whole ones are
        (Matryoshka representations, Kusupati et al., arXiv 2205.13147)."""
        if dimensions is None or dimensions == self.dimensions:
            return vectors
        part = vectors[:, :dimensions]
        return part / np.maximum(np.linalg.norm(part, axis=-1, keepdims=True), _SHORTEST) if self.unit else part


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledEvent(TokenEvent):
    """The one event of a text that the served model makes a vector of. It does not leave the engine's process."""

    vector: np.ndarray  # [D] float32


class Embedder(Protocol):
    """Here, behind a socket, or behind the gateway, as an Engine."""

    async def embed(self, request: EmbedRequest) -> np.ndarray:
        """[texts, D] float32, each row of length 1 but where `TextFacts` says otherwise. Cancelling it takes its texts
        out of the queue.

        Raises UnsupportedError where there is no encoder, RequestError for texts that it cannot read, OverloadedError
        where the queue is full, EngineError where the encoder fails, EngineUnavailableError where nobody answers.
        """
        ...


def refuse_unreadable(texts: Texts, facts: TextFacts) -> None:
    """Raises RequestError, or ContextLengthError for a text that is too long."""
    for at, text in enumerate(texts):
        if not text:
            raise RequestError(f"input[{at}] has no tokens", param=f"input[{at}]", code="invalid_value")
        if len(text) > facts.max_tokens:
            raise ContextLengthError(
                f"input[{at}] has {len(text)} tokens; {facts.reader} reads {facts.max_tokens} at most: embed parts "
                "of the text",
                param=f"input[{at}]",
            )
        if min(text) < 0 or max(text) >= facts.vocab_size:
            raise RequestError(
                f"input[{at}]: token ids must lie in 0 .. {facts.vocab_size - 1}",
                param=f"input[{at}]",
                code="invalid_value",
            )
