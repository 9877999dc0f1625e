"""A file's text, as it was read: what offsets of chunks and citations count in."""

from bisect import bisect_right
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Document:
    """Of a text or Markdown file `text` is the file's own, decoded; of others it is what their reader found."""

    text: str
    page_starts: tuple[int, ...] = ()  # the character at which each page begins; empty where there are no pages


def page_of(page_starts: tuple[int, ...], character: int) -> int | None:
    """Counted from 1; None where there are no pages."""
    return bisect_right(page_starts, character) if page_starts else None
