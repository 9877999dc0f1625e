"""Documents to passages: a chunk, and the windows in it that the encoder reads one at a time.

    chunk      512 to 1,024 tokens    what a search finds and a model reads
    windows    256 at most            what has a vector, and what a citation quotes

An encoder gives one vector whatever the length of its text, and MiniLM was made for 256 tokens. A chunk is as near to a
query as the nearest of its windows.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from serving.orchestrator.retrieval.chunks import Chunk, ChunkSizes, chunks_of
from serving.orchestrator.retrieval.document import Document

Span = tuple[int, int]  # characters of the document: the first, and one past the last


@dataclass(frozen=True, slots=True)
class Passage:
    chunk: Chunk
    windows: tuple[Span, ...]

    def text_of(self, window: Span) -> str:
        return self.chunk.text[window[0] - self.chunk.start : window[1] - self.chunk.start]

    def bytes(self, dimensions: int) -> int:
        """As it is kept, without what a database adds."""
        return len(self.chunk.text.encode()) + len(self.windows) * (4 * dimensions + 16)


@dataclass(frozen=True, slots=True)
class EmbeddedPassage:
    passage: Passage
    vectors: np.ndarray  # [windows, D] float32, each of length 1


def passages_of(
    document: Document, count: Callable[[str], int], sizes: ChunkSizes, window_tokens: int
) -> list[Passage]:
    """`count` gives the tokens of a text, without the encoder's marks; `window_tokens` have room beside those. A window
    ends where a page does, so that a citation is of one page."""
    packed = ChunkSizes(least=window_tokens, most=window_tokens, overlap=0)
    passages = []
    for chunk in chunks_of(document.text, count, sizes):
        windows: list[Span] = []
        for start, end in _between(chunk, document.page_starts):
            for window in chunks_of(document.text[start:end], count, packed):
                span = start + window.start, start + window.end
                windows += _fitting(document.text, span, count, window_tokens)
        passages.append(Passage(chunk, tuple(windows)))
    return passages


def _between(chunk: Chunk, page_starts: Sequence[int]) -> list[Span]:
    """A chunk's parts, each of one page."""
    cuts = [chunk.start, *(start for start in page_starts if chunk.start < start < chunk.end), chunk.end]
    return list(pairwise(cuts))


def _fitting(text: str, span: Span, count: Callable[[str], int], most: int) -> Iterator[Span]:
    """Halves of halves of a window that has more tokens than its words have."""
    start, end = span
    if count(text[start:end]) <= most or end - start < 2:
        yield span
        return
    middle = (start + end) // 2
    yield from _fitting(text, (start, middle), count, most)
    yield from _fitting(text, (middle, end), count, most)
