"""A document's text cut into overlapping chunks that end where sentences do.

sentences   a b c d e f g h
chunks      a b c d
                c d e f        the overlap: what a fact needs of the sentence before it
                    e f g h
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

# Where a sentence may end: closing punctuation (with quotes and brackets after it) before a space, or an empty line.
# A name's initial or title does not end one, nor do a few other words that stand before what they are about; another
# abbreviation may end one too soon, which costs a chunk nothing: its neighbour overlaps.
_SHORT = ("[A-Z]", "Dr", "Mr", "Mrs", "Ms", "Prof", "St", "Fig", "cf", "vs", r"e\.g", r"i\.e")
_FULL_STOP = "".join(rf"(?<!\b{short})" for short in _SHORT) + r"\."
_ENDS = re.compile(rf"(?:{_FULL_STOP}|[!?…])[\"'”’)\]]*\s+|[。！？]\s*|\n\s*\n\s*")
_WORDS = re.compile(r"\S+\s*")
_LONGEST_WORD = 4096  # characters, which are halved without being counted


@dataclass(frozen=True, slots=True)
class Chunk:
    """`text` is the document's own, from character `start` to `end`, without the white space around it."""

    start: int
    end: int
    text: str

    @property
    def span(self) -> tuple[int, int]:
        return self.start, self.end


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkSizes:
    """Tokens. A chunk ends with the sentence that brings it to `least`, or before the one that would exceed `most`."""

    least: int = 512
    most: int = 1024
    overlap: int = 128

    def __post_init__(self) -> None:
        if not 0 <= self.overlap < self.least <= self.most:
            raise ValueError(f"0 <= overlap < least <= most must hold, not {self.overlap}, {self.least}, {self.most}")


@dataclass(frozen=True, slots=True)
class _Piece:
    """A sentence, or a part of one that is longer than a chunk."""

    start: int
    end: int
    tokens: int


def chunks_of(text: str, count: Callable[[str], int], sizes: ChunkSizes | None = None) -> list[Chunk]:
    """`count` gives the tokens of a text. Every character that is no white space lies in a chunk; no chunk exceeds
    `most`, as far as the tokens of a text are those of its words."""
    sizes = sizes or ChunkSizes()
    pieces = list(_pieces(text, count, sizes.most))
    chunks: list[Chunk] = []
    first = 0
    while first < len(pieces):
        last = first
        total = pieces[first].tokens
        while total < sizes.least and last + 1 < len(pieces) and total + pieces[last + 1].tokens <= sizes.most:
            last += 1
            total += pieces[last].tokens
        chunks.append(_chunk(text, pieces[first].start, pieces[last].end))
        if last + 1 == len(pieces):
            break
        first = _next_first(pieces, first, last, sizes)
    return chunks


def _next_first(pieces: list[_Piece], first: int, last: int, sizes: ChunkSizes) -> int:
    """The last sentences of a chunk that fit the overlap begin the next one, which must still reach a new sentence."""
    begin, total = last + 1, 0
    room = min(sizes.overlap, sizes.most - pieces[last + 1].tokens)
    while begin - 1 > first and total + pieces[begin - 1].tokens <= room:
        begin -= 1
        total += pieces[begin].tokens
    return begin


def _pieces(text: str, count: Callable[[str], int], most: int) -> Iterator[_Piece]:
    for start, end in sentences_of(text):
        tokens = count(text[start:end])
        if tokens <= most:
            yield _Piece(start, end, tokens)
        else:
            yield from _parts(text, start, end, count, most)


def sentences_of(text: str) -> Iterator[tuple[int, int]]:
    """The span of each, with the white space after it."""
    start = 0
    for end in (*(match.end() for match in _ENDS.finditer(text)), len(text)):
        if text[start:end].strip():
            yield start, end
        start = end


def _parts(text: str, start: int, end: int, count: Callable[[str], int], most: int) -> Iterator[_Piece]:
    """A sentence that is too long for a chunk, at the words where it fills one."""
    begin, total, tokens_at = start, 0, start
    for word_start, word_end, tokens in _words(text, start, end, count, most):
        if total and total + tokens > most:
            yield _Piece(begin, tokens_at, total)
            begin, total = word_start, 0
        total += tokens
        tokens_at = word_end
    yield _Piece(begin, end, total)


def _words(text: str, start: int, end: int, count: Callable[[str], int], most: int) -> Iterator[tuple[int, int, int]]:
    """(start, end, tokens); a word that no chunk could hold, such as coded bytes, in halves of halves."""
    left = [match.span() for match in _WORDS.finditer(text, start, end)][::-1]
    while left:
        begin, stop = left.pop()
        tokens = count(text[begin:stop]) if stop - begin <= _LONGEST_WORD else most + 1
        if tokens <= most or stop - begin < 2:
            yield begin, stop, tokens
        else:
            middle = (begin + stop) // 2
            left += [(middle, stop), (begin, middle)]


def _chunk(text: str, start: int, end: int) -> Chunk:
    found = text[start:end]
    start += len(found) - len(found.lstrip())
    found = found.strip()
    return Chunk(start, start + len(found), found)
