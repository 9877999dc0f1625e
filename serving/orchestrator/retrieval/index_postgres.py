"""The index in Postgres, with pgvector: for stores that one machine's files should not hold.

All stores share the tables, so a document's number, which is of one store alone, is looked up by store and file in each
transaction, and what is searched is filtered by such numbers.
"""

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from functools import partial

import asyncpg
import numpy as np
from pgvector.asyncpg import register_vector

from serving.errors import ConfigError
from serving.orchestrator.retrieval.chunks import Chunk
from serving.orchestrator.retrieval.document import Document
from serving.orchestrator.retrieval.index import DocumentGoneError, Held, IndexUnavailableError
from serving.orchestrator.retrieval.index_postgres_tables import MOST_DIMENSIONS, make_tables, vectors_table
from serving.orchestrator.retrieval.passages import EmbeddedPassage, Passage
from serving.orchestrator.retrieval.query_words import plain_words, query_words
from serving.postgres_pool import Connection, PostgresPool

WRITE_SECONDS = 60  # for one statement: a graph grows slowly, and a long document goes in one piece
EXACT_WINDOWS = 20_000  # below so many a store, or what a filter leaves of it, is searched whole
GRAPH_WINDOWS = 400  # that a graph is asked for at first: hnsw.ef_search
MOST_WORD_CHARS = 1 << 16  # of a passage's words, which are far fewer of any language: a tsvector holds one MiB

# The store's name is one of its passages' words, so that no word is looked up beyond the store. No other has "_".
_ADD = """
INSERT INTO weft_passages (document, number, start, text, windows, words)
VALUES ($1, $2, $3, $4, $5, to_tsvector('weft_words', $6) || array_to_tsvector(ARRAY[$7::text])) RETURNING id
"""
_EXACTLY = """
SELECT passage FROM {table} WHERE document = ANY($2::bigint[])
GROUP BY passage ORDER BY min(vector <=> $1), passage LIMIT $3
"""
_BY_GRAPH = """
SELECT passage FROM {table} WHERE document = ANY($2::bigint[]) ORDER BY vector <=> $1 LIMIT $3
"""
# A plan is made for the very filter, whose size decides it. Strict order: what comes first is nearest.
_SETTINGS = f"""
SET LOCAL plan_cache_mode = force_custom_plan; SET LOCAL jit = off;
SET LOCAL hnsw.iterative_scan = strict_order; SET LOCAL hnsw.ef_search = {GRAPH_WINDOWS};
"""
# By words first, however few documents there are: to unpack the words of a passage is what costs. So `document + 0`,
# which no index is of.
_WORD_SETTINGS = "SET LOCAL plan_cache_mode = force_custom_plan; SET LOCAL jit = off; SET LOCAL enable_seqscan = off"
# A word's rank in a passage (1: less in a longer one), times what BM25 gives for its rarity, which Postgres's ranks do
# not know.
_BY_WORDS = """
WITH terms AS MATERIALIZED (
    SELECT DISTINCT plainto_tsquery('weft_words', word)::text AS term FROM unnest($1::text[]) AS word
),
hits AS MATERIALIZED (
    SELECT id, term, ts_rank(words, term::tsquery, 1) AS rank
    FROM terms JOIN weft_passages ON words @@ (term::tsquery && $2::text::tsquery)
    WHERE term <> '' AND document + 0 = ANY($3::bigint[])
),
rarity AS (SELECT term, ln(1 + ($4 - count(*) + 0.5) / (count(*) + 0.5)) AS weight FROM hits GROUP BY term)
SELECT id FROM hits JOIN rarity USING (term) GROUP BY id ORDER BY sum(rank * weight) DESC, id LIMIT $5
"""
_PASSAGES = """
SELECT id, file_id, p.number, page_starts, start, p.text, p.windows FROM weft_passages AS p
JOIN weft_documents AS d ON d.number = document WHERE store = $1 AND id = ANY($2::bigint[])
"""
# One at a time, each in its own transaction: a store may be large.
_DROP = "DELETE FROM weft_documents WHERE number = (SELECT number FROM weft_documents WHERE store = $1 LIMIT 1)"


class PostgresIndex:
    """Implements `Index`. Any number of processes may use one database."""

    def __init__(
        self,
        url: str,
        password: str | None = None,
        *,
        dimensions: int | None = None,
        exact_windows: int = EXACT_WINDOWS,
    ) -> None:
        """`dimensions` of the encoder's vectors; None: nothing is added or searched. Raises ConfigError."""
        if dimensions is not None and dimensions > MOST_DIMENSIONS:
            raise ConfigError(
                f'retrieval.index = "pgvector" takes vectors of {MOST_DIMENSIONS} dimensions at most, and the '
                f"encoder's have {dimensions}",
                param="index",
            )
        self._exact_windows = exact_windows
        self._table = vectors_table(dimensions or 0)
        self._pool = PostgresPool(
            url,
            password,
            prepare=partial(make_tables, dimensions=dimensions),
            adapt=None if dimensions is None else _adapt,
            lost=_lost,
        )

    async def check(self) -> None:
        """Raises ConfigError, and IndexUnavailableError where nobody answers."""
        await self._pool.check()

    async def put_document(self, store: str, file_id: str, document: Document) -> None:
        async with self._transaction() as db:
            await _remove(db, store, file_id)
            await db.execute(
                "INSERT INTO weft_documents (store, file_id, text, page_starts) VALUES ($1, $2, $3, $4)",
                store,
                file_id,
                document.text.encode(),
                document.page_starts,
                timeout=WRITE_SECONDS,
            )

    async def document(self, store: str, file_id: str) -> Document | None:
        query = "SELECT text, page_starts FROM weft_documents WHERE store = $1 AND file_id = $2"
        async with self._transaction() as db:
            found = await db.fetchrow(query, store, file_id)
        return None if found is None else Document(found["text"].decode(), tuple(found["page_starts"]))

    async def add(self, store: str, file_id: str, first: int, passages: Sequence[EmbeddedPassage]) -> None:
        # The document's row is locked until the commit: who removes it comes before or after.
        hold = """
            UPDATE weft_documents SET passages = passages + $3, windows = windows + $4
            WHERE store = $1 AND file_id = $2 RETURNING number
        """
        windows = sum(len(embedded.vectors) for embedded in passages)
        async with self._transaction() as db:
            document = await db.fetchval(hold, store, file_id, len(passages), windows)
            if document is None:
                raise DocumentGoneError(file_id)
            rows = [_row(document, store, first + at, each.passage) for at, each in enumerate(passages)]
            made = await db.fetchmany(_ADD, rows, timeout=WRITE_SECONDS)
            vectors = [
                (row["id"], place, document, vector)
                for row, embedded in zip(made, passages, strict=True)
                for place, vector in enumerate(embedded.vectors)
            ]
            await db.executemany(f"INSERT INTO {self._table} VALUES ($1, $2, $3, $4)", vectors, timeout=WRITE_SECONDS)

    async def count(self, store: str, file_id: str) -> int:
        query = "SELECT passages FROM weft_documents WHERE store = $1 AND file_id = $2"
        async with self._transaction() as db:
            return await db.fetchval(query, store, file_id) or 0

    async def by_vector(self, store: str, query: np.ndarray, files: Collection[str], limit: int) -> list[int]:
        async with self._transaction() as db:
            documents, _, windows = await _documents(db, store, files)
            await db.execute(_SETTINGS)
            wanted = GRAPH_WINDOWS
            while windows > max(self._exact_windows, wanted):
                rows = await db.fetch(_BY_GRAPH.format(table=self._table), query, documents, wanted)
                found = list(dict.fromkeys(row["passage"] for row in rows))
                if len(found) >= limit:
                    return found[:limit]
                if len(rows) < wanted:
                    break  # the graph was left before enough of these documents were met
                wanted *= 4  # a passage's windows fill the first places
            rows = await db.fetch(_EXACTLY.format(table=self._table), query, documents, limit)
            return [row["passage"] for row in rows]

    async def by_words(self, store: str, query: str, files: Collection[str], limit: int) -> list[int]:
        words = [plain_words(word) for word in query_words(query)]
        if not words:
            return []
        async with self._transaction() as db:
            documents, passages, _ = await _documents(db, store, files)
            await db.execute(_WORD_SETTINGS)
            rows = await db.fetch(_BY_WORDS, words, f"'{store}'", documents, passages, limit)
            return [row["id"] for row in rows]

    async def passages(self, store: str, ids: Sequence[int]) -> list[Held]:
        query = f"SELECT passage, vector FROM {self._table} WHERE passage = ANY($1::bigint[]) ORDER BY passage, place"
        async with self._transaction() as db:
            rows = await db.fetch(_PASSAGES, store, ids)
            vectors: dict[int, list[np.ndarray]] = {row["id"]: [] for row in rows}
            for passage, vector in await db.fetch(query, list(vectors)):
                vectors[passage].append(vector.to_numpy())
        held = {row["id"]: _held(row, vectors[row["id"]]) for row in rows if vectors[row["id"]]}
        return [held[each] for each in ids if each in held]

    async def remove(self, store: str, file_id: str) -> None:
        async with self._transaction() as db:
            await _remove(db, store, file_id)

    async def drop(self, store: str) -> None:
        some = "DELETE 1"
        while some != "DELETE 0":
            async with self._transaction() as db:
                some = await db.execute(_DROP, store, timeout=WRITE_SECONDS)

    async def close(self) -> None:
        await self._pool.close()

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[Connection]:
        try:
            async with self._pool.transaction() as db:
                yield db
        except ConfigError as error:  # it was away when the server began, and has come back as another
            raise IndexUnavailableError(error.message) from error


def _lost() -> IndexUnavailableError:
    return IndexUnavailableError("the database of vector stores cannot be reached")


async def _adapt(db: asyncpg.Connection) -> None:
    schema = "SELECT nspname FROM pg_namespace JOIN pg_extension ON extnamespace = pg_namespace.oid"
    await register_vector(db, schema=str(await db.fetchval(f"{schema} WHERE extname = 'vector'")))


async def _remove(db: Connection, store: str, file_id: str) -> None:
    statement = "DELETE FROM weft_documents WHERE store = $1 AND file_id = $2"
    await db.execute(statement, store, file_id, timeout=WRITE_SECONDS)


async def _documents(db: Connection, store: str, files: Collection[str]) -> tuple[list[int], int, int]:
    """The numbers of a store's documents, their passages, their windows."""
    query = "SELECT number, passages, windows FROM weft_documents WHERE store = $1 AND file_id = ANY($2::text[])"
    rows = await db.fetch(query, store, list(files))
    numbers = [row["number"] for row in rows]
    return numbers, sum(row["passages"] for row in rows), sum(row["windows"] for row in rows)


def _row(document: int, store: str, number: int, passage: Passage) -> tuple[object, ...]:
    chunk = passage.chunk
    windows = [at for span in passage.windows for at in span]
    words = plain_words(chunk.text)[:MOST_WORD_CHARS]
    return document, number, chunk.start, chunk.text.encode(), windows, words, store


def _held(row: asyncpg.Record, vectors: Sequence[np.ndarray]) -> Held:
    text, windows = row["text"].decode(), row["windows"]
    spans = tuple(zip(windows[::2], windows[1::2], strict=True))
    passage = Passage(Chunk(row["start"], row["start"] + len(text), text), spans)
    embedded = EmbeddedPassage(passage, np.stack(vectors))
    return Held(row["id"], row["file_id"], row["number"], tuple(row["page_starts"]), embedded)
