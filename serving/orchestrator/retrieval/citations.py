"""Markers in an answer, such as [48213], as annotations beside it.

A tool's result numbers its passages, and asks the model to write a passage's number after what it took from it. A
number follows from the passage and its file's name, so that it is the same in each search of a conversation, and a
file that is uploaded again is answered from as it was before. In the answer that a client reads the markers are gone,
and an annotation says where each stood.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

_MARKER = re.compile(r" ?\[(\d{5})\]")
_BEGUN = re.compile(r" ?(?:\[\d{0,5})?$")  # what the next piece of text may make a marker

Source = Mapping[str, Any]  # one of a file search's results: marker, file_id, filename, and more


def marker_of(filename: str, number: int, text: str) -> str:
    """Five digits; `number` is the passage's in its file."""
    digest = hashlib.sha256(f"{filename}\0{number}\0{text}".encode()).digest()
    return f"{int.from_bytes(digest[:8], 'big') % 100_000:05}"


class CitedText:
    """An answer as it streams. Markers of unknown numbers are text, for they are not ours."""

    def __init__(self, sources: Iterable[Source]) -> None:
        """`sources` of all searches of the conversation so far; of two with one marker the later one counts."""
        self._sources = {source["marker"]: source for source in sources}
        self._held = ""
        self._length = 0  # characters told
        self.annotations: list[dict[str, Any]] = []

    def feed(self, piece: str) -> str:
        """The text that can be told now; `annotations` grows with it."""
        text = self._held + piece
        begun = _BEGUN.search(text)
        end = len(text) if begun is None else begun.start()
        self._held = text[end:]
        return self._without_markers(text[:end])

    def finish(self) -> str:
        """What was held back."""
        text, self._held = self._held, ""
        return self._without_markers(text)

    def _without_markers(self, text: str) -> str:
        parts, at = [], 0
        for match in _MARKER.finditer(text):
            source = self._sources.get(match[1])
            if source is None:
                continue
            parts.append(text[at : match.start()])
            at = match.end()
            self._cite(source, self._length + sum(map(len, parts)))
        parts.append(text[at:])
        told = "".join(parts)
        self._length += len(told)
        return told

    def _cite(self, source: Source, index: int) -> None:
        annotation = {
            "type": "file_citation",
            "index": index,
            "file_id": source["file_id"],
            "filename": source["filename"],
        }
        passage = {name: source[name] for name in ("quote", "start", "end", "page") if name in source}
        self.annotations.append({**annotation, **passage})
