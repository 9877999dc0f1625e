"""How this deployment makes vectors: the encoder's name, its tokens, and whoever computes them."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import numpy as np

from serving.engine.embedding import Texts
from serving.errors import RequestError
from serving.generation.text_embedder import TextTokenizer

# Token ids, and on whose account they are computed: a principal as msgpack. [texts, D] float32, each row of length 1.
Embed = Callable[[Texts, bytes], Awaitable[np.ndarray]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    name: str
    dimensions: int
    max_tokens: int  # of a text, marks included
    tokenizer: TextTokenizer
    embed: Embed

    @property
    def window_tokens(self) -> int:
        """Beside the marks."""
        return self.max_tokens - len(self.tokenizer.encode([""])[0])

    def counter(self) -> Callable[[str], int]:
        """Tokens of a text, without marks."""
        marks = self.max_tokens - self.window_tokens
        return lambda text: len(self.tokenizer.encode([text])[0]) - marks

    def query(self, texts: Sequence[str]) -> Texts:
        """Raises RequestError."""
        encoded = self.tokenizer.encode(texts)
        longest = max(map(len, encoded))
        if longest > self.max_tokens:
            raise RequestError(
                f"the query has {longest} tokens of {self.name}; a query may have {self.max_tokens}",
                param="query",
                code="context_length_exceeded",
            )
        return encoded
