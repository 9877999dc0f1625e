"""Texts to vectors: the encoder's own tokenizer, and whoever embeds its token ids."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tokenizers

from serving.engine.embedding import Embedder, Texts
from serving.engine.encoder_folder import EncoderFacts
from serving.errors import CheckpointError


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


@dataclass(frozen=True, slots=True, kw_only=True)
class TextEmbedder:
    name: str  # the model id that clients send
    facts: EncoderFacts
    tokenizer: EncoderTokenizer
    embedder: Embedder

    async def tokenize(self, texts: Sequence[str]) -> Texts:
        return await asyncio.to_thread(self.tokenizer.encode, texts)
