"""Texts to vectors: the tokenizer of whoever embeds, and whoever embeds its token ids."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import tokenizers

from serving.engine.embedding import Embedder, TextFacts, Texts
from serving.errors import CheckpointError, ConfigError
from serving.generation.tokenizer import Tokenizer


class TextTokenizer(Protocol):
    def encode(self, texts: Sequence[str]) -> Texts:
        """Each with the marks that belong around a text."""
        ...


class EncoderTokenizer:
    """tokenizer.json as it is, with the marks that its post-processor puts around a text, but neither cut nor padded.

    Not a `Tokenizer`: nothing is ever decoded here.
    """

    def __init__(self, path: Path) -> None:
        """Raises CheckpointError."""
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises nothing narrower
            raise CheckpointError(f"{path}: not a tokenizer.json that can be read: {error}") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def encode(self, texts: Sequence[str]) -> Texts:
        return tuple(tuple(text.ids) for text in self._tokenizer.encode_batch_fast(list(texts)))


class MarkingTokenizer:
    """The served model's own tokenizer, with the marks that it puts around a text, and `end_token` behind it where it
    does not put that there itself."""

    def __init__(self, tokenizer: Tokenizer, end_token: str | None) -> None:
        """Raises ConfigError where the model has no such token, or nobody says which one ends a text."""
        self._tokenizer = tokenizer
        self._end: int | None = None
        if end_token is not None:
            ids = tokenizer.encode(end_token, add_special_tokens=False)
            if len(ids) != 1 or tokenizer.piece(ids[0]) != end_token:
                raise _wrong_end(f"is {end_token!r}, which is no token of the model's")
            self._end = ids[0]
        elif tokenizer.checkpoint.add_eos_token and self._ends_openly():
            raise _wrong_end("must be given: tokenizer_config.json asks for one behind each text (add_eos_token)")

    def encode(self, texts: Sequence[str]) -> Texts:
        return tuple(self._ended(tuple(self._tokenizer.encode(text, add_special_tokens=True))) for text in texts)

    def _ended(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        return ids if self._end is None or ids[-1:] == (self._end,) else (*ids, self._end)

    def _ends_openly(self) -> bool:
        ids = self._tokenizer.encode("a", add_special_tokens=True)
        return not ids or ids[-1] not in self._tokenizer.eos_token_ids


def _wrong_end(message: str) -> ConfigError:
    return ConfigError(f"model_embeddings.end_token {message}", param="model_embeddings.end_token")


@dataclass(frozen=True, slots=True, kw_only=True)
class TextEmbedder:
    name: str  # the model id that clients send
    facts: TextFacts
    tokenizer: TextTokenizer
    embedder: Embedder
    model: str = ""  # see `EmbedRequest`

    async def tokenize(self, texts: Sequence[str]) -> Texts:
        return await asyncio.to_thread(self.tokenizer.encode, texts)
