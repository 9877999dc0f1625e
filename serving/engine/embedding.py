"""What an encoder is asked, and who answers: token ids in, one vector a text out."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

Texts = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedRequest:
    request_id: str
    texts: Texts  # token ids, special ones included; none is empty

    @property
    def tokens(self) -> int:
        return sum(map(len, self.texts))


class Embedder(Protocol):
    """Here, behind a socket, or behind the gateway, as an Engine."""

    async def embed(self, request: EmbedRequest) -> np.ndarray:
        """[texts, D] float32, each row of length 1. Cancelling it takes its texts out of the queue.

        Raises UnsupportedError where there is no encoder, RequestError for texts that it cannot read, OverloadedError
        where the queue is full, EngineError where the encoder fails, EngineUnavailableError where nobody answers.
        """
        ...
