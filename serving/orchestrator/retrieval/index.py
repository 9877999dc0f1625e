"""Where documents, their passages and their vectors are kept, and found by vector or by words.

One store's content is never seen through another's name. Methods raise IndexUnavailableError where the disk or the
server beneath does not answer.
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
    async def check(self) -> None:
        """That it can be used: asked once, before a server begins. Raises ConfigError, which says what to install."""
        ...

    async def put_document(self, store: str, file_id: str, document: Document) -> None:
        """In place of an earlier one of this file and of its passages."""
        ...

    async def document(self, store: str, file_id: str) -> Document | None: ...

    async def add(self, store: str, file_id: str, first: int, passages: Sequence[EmbeddedPassage]) -> None:
        """All of them or none; `first` is the number of the first one, and as many are held before. Raises
        DocumentGoneError."""
        ...

    async def count(self, store: str, file_id: str) -> int:
        """The passages of a file."""
        ...

    async def by_vector(self, store: str, query: np.ndarray, files: Collection[str], limit: int) -> list[int]:
        """Ids of the passages whose nearest window is nearest to `query` ([D], of length 1), best first."""
        ...

    async def by_words(self, store: str, query: str, files: Collection[str], limit: int) -> list[int]:
        """Ids of the passages with the words of `query`, any of them, best first."""
        ...

    async def passages(self, store: str, ids: Sequence[int]) -> list[Held]:
        """In the order of `ids`; what was removed meanwhile is left out."""
        ...

    async def remove(self, store: str, file_id: str) -> None: ...

    async def drop(self, store: str) -> None:
        """All of a store."""
        ...

    async def close(self) -> None: ...
