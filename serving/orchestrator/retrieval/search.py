"""A question to the passages of stores that answer it best."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from serving.errors import RequestError
from serving.orchestrator.retrieval.catalog import Catalog
from serving.orchestrator.retrieval.encoding import Encoding
from serving.orchestrator.retrieval.fusion import fused
from serving.orchestrator.retrieval.index import Held, Index
from serving.orchestrator.retrieval.passages import Span
from serving.orchestrator.retrieval.query import Query
from serving.orchestrator.retrieval.vector_store import StoreFile

CANDIDATES = 100  # of each ranking that goes into the fused one


@dataclass(frozen=True, slots=True)
class Found:
    file: StoreFile
    held: Held
    score: float  # the cosine of the query and the nearest window, 0 where it is negative
    window: Span  # the nearest, in characters of the document

    @property
    def quote(self) -> str:
        return self.held.embedded.passage.text_of(self.window)

    @property
    def citation(self) -> dict[str, object]:
        """Where it stands: `text[start:end]` of the document is the quote."""
        start, end = self.window
        return {
            "file_id": self.file.file_id,
            "filename": self.file.filename,
            "quote": self.quote,
            "start": start,
            "end": end,
            "page": self.held.page_of(start),
        }


@dataclass(frozen=True, slots=True)
class Told:
    """A passage as a model is told it: whole, or some sentences of it."""

    found: Found
    text: str


class Search:
    def __init__(self, catalog: Catalog, index: Index, encoding: Encoding) -> None:
        self._catalog = catalog
        self._index = index
        self._encoding = encoding

    async def find(self, tenant: str, store_ids: Sequence[str], query: Query, principal: bytes) -> list[Found]:
        """Best first; of several stores the first of each go first. `principal` pays for the query's vector.

        Raises NotFoundError for another tenant's store too, RequestError, and what the gateway and the engine raise.
        """
        stores = [await self._catalog.living_store(tenant, store_id) for store_id in dict.fromkeys(store_ids)]
        for store in stores:
            if store.encoder != self._encoding.name:
                raise RequestError(
                    f"the vector store {store.id} was made with {store.encoder}, and this server's encoder is "
                    f"{self._encoding.name}: make it anew",
                    param="vector_store_id",
                    code="encoder_changed",
                )
        encoded = await asyncio.to_thread(self._encoding.query, query.texts)
        vectors = await self._encoding.embed(encoded, principal)
        ranked: list[tuple[int, Found]] = []
        for store in stores:
            found = await self._find_in(store.id, query, vectors)
            ranked += enumerate(found)
        ranked.sort(key=lambda item: (item[0], -item[1].score))
        return [found for _, found in ranked[: query.limit]]

    async def _find_in(self, store_id: str, query: Query, vectors: np.ndarray) -> list[Found]:
        files = {
            file.file_id: file
            for file in await self._catalog.completed_files(store_id)
            if query.filter is None or query.filter.holds(file.attributes)
        }
        if not files:
            return []
        rankings: list[tuple[float, list[int]]] = []
        for text, vector in zip(query.texts, vectors, strict=True):
            if query.vector_weight:
                near = await self._index.by_vector(store_id, vector, files, CANDIDATES)
                rankings.append((query.vector_weight, near))
            if query.text_weight:
                named = await self._index.by_words(store_id, text, files, CANDIDATES)
                rankings.append((query.text_weight, named))
        order = fused(rankings)
        if not query.least_score:
            order = order[: query.limit]
        held = await self._index.passages(store_id, order)
        found = await asyncio.to_thread(_scored, held, files, vectors)
        return [each for each in found if each.score >= query.least_score][: query.limit]


def _scored(held: Sequence[Held], files: Mapping[str, StoreFile], vectors: np.ndarray) -> list[Found]:
    return [_found(files[each.file_id], each, vectors) for each in held if each.file_id in files]


def _found(file: StoreFile, held: Held, vectors: np.ndarray) -> Found:
    scores = (held.embedded.vectors @ vectors.T).max(axis=1)
    nearest = int(scores.argmax())
    score = round(float(np.clip(scores[nearest], 0.0, 1.0)), 6)
    return Found(file, held, score, held.embedded.passage.windows[nearest])
