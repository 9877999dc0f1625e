"""Where documents, their passages and their vectors are kept, and found by vector or by words.

One store's content is never seen through another's name. Methods may be called from several threads, and wait for a
disk or a server: call them on a thread. They raise IndexUnavailableError where that does not answer.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from serving.errors import OverloadedError
from serving.orchestrator.retrieval.document import Document, page_of
from serving.orchestrator.retrieval.passages import EmbeddedPassage

RETRY_SECONDS = 30.0


class IndexUnavailableError(OverloadedError):
    def __init__(self, message: str) -> None:
        super().__init__(message, retry_after=RETRY_SECONDS, code="index_unavailable")


class DocumentGoneError(Exception):
    """It was removed while passages of it came."""


@dataclass(frozen=True, slots=True)
class Held:
    """A passage as it is kept."""

    id: int  # within the store
    file_id: str
    number: int  # of its document's passages, counted from 0
    page_starts: tuple[int, ...]  # of its document
    embedded: EmbeddedPassage

    def page_of(self, character: int) -> int | None:
        return page_of(self.page_starts, character)


class Index(Protocol):
    def put_document(self, store: str, file_id: str, document: Document) -> None:
        """In place of an earlier one of this file and of its passages."""
        ...

    def document(self, store: str, file_id: str) -> Document | None: ...

    def add(self, store: str, file_id: str, first: int, passages: Sequence[EmbeddedPassage]) -> None:
        """All of them or none; `first` is the number of the first one, and as many are held before. Raises
        DocumentGoneError."""
        ...

    def count(self, store: str, file_id: str) -> int:
        """The passages of a file."""
        ...

    def by_vector(self, store: str, query: np.ndarray, files: Collection[str], limit: int) -> list[int]:
        """Ids of the passages whose nearest window is nearest to `query` ([D], of length 1), best first."""
        ...

    def by_words(self, store: str, query: str, files: Collection[str], limit: int) -> list[int]:
        """Ids of the passages with the words of `query`, any of them, best first."""
        ...

    def passages(self, store: str, ids: Sequence[int]) -> list[Held]:
        """In the order of `ids`; what was removed meanwhile is left out."""
        ...

    def remove(self, store: str, file_id: str) -> None: ...

    def drop(self, store: str) -> None:
        """All of a store."""
        ...

    def stores(self) -> list[str]:
        """Those that hold anything."""
        ...

    def close(self) -> None: ...
