"""An embedder that needs no model: a text's vector is made of its length and its ids."""

import asyncio
from pathlib import Path

import numpy as np

from serving.engine.embedding import EmbedRequest, TextFacts
from serving.errors import WeftError
from serving.generation.text_embedder import EncoderTokenizer, TextEmbedder
from tests.fakes.tiny_encoder import WORDS, save_tiny_encoder

ENCODER = "tiny-encoder"


class CountingEmbedder:
    """Implements `Embedder`, with vectors of four numbers."""

    def __init__(self, error: WeftError | None = None, *, hangs: bool = False) -> None:
        self.asked: list[EmbedRequest] = []
        self.error = error
        self.hangs = hangs
        self.begun = asyncio.Event()
        self.given_up = asyncio.Event()

    async def embed(self, request: EmbedRequest) -> np.ndarray:
        self.asked.append(request)
        self.begun.set()
        if self.error is not None:
            raise self.error
        try:
            while self.hangs:
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.given_up.set()
            raise
        made = np.array([[len(text), text[0], text[-1], sum(text)] for text in request.texts], np.float32)
        return made / np.linalg.norm(made, axis=-1, keepdims=True)


def tiny_text_embedder(folder: Path, embedder: CountingEmbedder | None = None) -> TextEmbedder:
    """With the tokenizer of the tiny encoder, which is kept in `folder`."""
    home = folder / "tiny-encoder"
    if not home.exists():
        save_tiny_encoder(home)
    return TextEmbedder(
        name=ENCODER,
        facts=TextFacts(dimensions=4, vocab_size=len(WORDS), max_tokens=40),
        tokenizer=EncoderTokenizer(home / "tokenizer.json"),
        embedder=embedder or CountingEmbedder(),
    )
