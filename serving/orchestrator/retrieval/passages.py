"""Documents to passages: a chunk, and the windows in it that the encoder reads one at a time.

    chunk      512 to 1,024 tokens    what a search finds and a model reads
    windows    256 at most            what has a vector, and what a citation quotes

An encoder gives one vector whatever the length of its text, and MiniLM was made for 256 tokens. A chunk is as near to a
query as the nearest of its windows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from serving.orchestrator.retrieval.chunks import Chunk, ChunkSizes, chunks_of

Span = tuple[int, int]  # characters of the document: the first, and one past the last


@dataclass(frozen=True, slots=True)
class Passage:
    chunk: Chunk
    windows: tuple[Span, ...]

    def text_of(self, window: Span) -> str:
        return self.chunk.text[window[0] - self.chunk.start : window[1] - self.chunk.start]


@dataclass(frozen=True, slots=True)
class EmbeddedPassage:
    passage: Passage
    vectors: np.ndarray  # [windows, D] float32, each of length 1


def passages_of(text: str, count: Callable[[str], int], sizes: ChunkSizes, window_tokens: int) -> list[Passage]:
    """`count` gives the tokens of a text, without the encoder's marks; `window_tokens` have room beside those."""
    windows = ChunkSizes(least=window_tokens, most=window_tokens, overlap=0)
    return [
        Passage(chunk, tuple(_within(chunk, chunks_of(chunk.text, count, windows))))
        for chunk in chunks_of(text, count, sizes)
    ]


def _within(chunk: Chunk, windows: Sequence[Chunk]) -> list[Span]:
    return [(chunk.start + window.start, chunk.start + window.end) for window in windows]
