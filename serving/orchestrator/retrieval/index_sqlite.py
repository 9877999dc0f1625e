"""The index without a server: one SQLite file for each store.

A file of its own keeps a store's words out of every other store's statistics, lets two stores be written at once, and
makes the end of a store the end of a file. Vectors are float32 blobs beside their passages; a store's are read into
memory when it is first searched (`vector_cache.py`), words are FTS5's.
"""

import asyncio
import re
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import wraps
from pathlib import Path
from types import CoroutineType
from typing import Any, Concatenate, ParamSpec, TypeVar
from urllib.parse import quote

import msgspec
import numpy as np

from serving.errors import ConfigError
from serving.facts_file import transaction
from serving.orchestrator.retrieval.chunks import Chunk
from serving.orchestrator.retrieval.document import Document
from serving.orchestrator.retrieval.index import DocumentGoneError, Held, IndexUnavailableError
from serving.orchestrator.retrieval.passages import EmbeddedPassage, Passage
from serving.orchestrator.retrieval.query_words import query_words
from serving.orchestrator.retrieval.vector_cache import Row, StoreState, VectorCache, nearest

BUSY_SECONDS = 30.0  # how long another thread or process may hold a store
SCHEMA = """
CREATE TABLE IF NOT EXISTS documents (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    file_id TEXT NOT NULL UNIQUE,
    text TEXT NOT NULL,
    page_starts BLOB NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS passages (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    document INTEGER NOT NULL,
    number INTEGER NOT NULL,
    start INTEGER NOT NULL,
    text TEXT NOT NULL,
    windows BLOB NOT NULL,
    vectors BLOB NOT NULL,
    UNIQUE (document, number)
) STRICT;
CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5 (
    text, content = 'passages', content_rowid = 'id', tokenize = 'porter unicode61 remove_diacritics 2'
);
CREATE TABLE IF NOT EXISTS state (removals INTEGER NOT NULL, windows INTEGER NOT NULL) STRICT;
INSERT INTO state SELECT 0, 0 WHERE NOT EXISTS (SELECT 1 FROM state);
"""
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_ids = msgspec.json.Encoder()
_P = ParamSpec("_P")
_T = TypeVar("_T")


def _on_thread(
    work: Callable[Concatenate["SqliteIndex", _P], _T],
) -> "Callable[Concatenate[SqliteIndex, _P], CoroutineType[Any, Any, _T]]":
    @wraps(work)
    async def run(index: "SqliteIndex", *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return await asyncio.to_thread(work, index, *args, **kwargs)

    return run


class SqliteIndex:
    """Implements `Index`. Several processes of one machine may search one folder, while one of them adds to it."""

    def __init__(self, folder: Path, *, cache_bytes: int = 1 << 30) -> None:
        """`cache_bytes` of vectors are held in memory. Raises ConfigError where the folder cannot be used."""
        self._folder = folder / "stores"
        self._cache = VectorCache(cache_bytes)
        self._creating = threading.Lock()
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"retrieval.folder: {folder} cannot be used: {error}", param="folder") from error

    async def check(self) -> None:
        """Its folder was made when it was."""

    @_on_thread
    def put_document(self, store: str, file_id: str, document: Document) -> None:
        self._create(store)
        with self._open(store, writes=True) as connection:
            if connection is None:
                raise DocumentGoneError(file_id)  # with its store
            self._remove(connection, file_id)
            connection.execute(
                "INSERT INTO documents (file_id, text, page_starts) VALUES (?, ?, ?)",
                (file_id, document.text, np.array(document.page_starts, "<i8").tobytes()),
            )

    @_on_thread
    def document(self, store: str, file_id: str) -> Document | None:
        with self._open(store) as connection:
            query = "SELECT text, page_starts FROM documents WHERE file_id = ?"
            row = None if connection is None else connection.execute(query, (file_id,)).fetchone()
        return None if row is None else Document(row[0], _page_starts(row[1]))

    @_on_thread
    def add(self, store: str, file_id: str, first: int, passages: Sequence[EmbeddedPassage]) -> None:
        with self._open(store, writes=True) as connection:
            found = None if connection is None else _number_of(connection, file_id)
            if connection is None or found is None:
                raise DocumentGoneError(file_id)
            for number, embedded in enumerate(passages, start=first):
                chunk = embedded.passage.chunk
                made = connection.execute(
                    "INSERT INTO passages (document, number, start, text, windows, vectors) VALUES (?, ?, ?, ?, ?, ?)",
                    (
                        found,
                        number,
                        chunk.start,
                        chunk.text,
                        np.array(embedded.passage.windows, "<i8").tobytes(),
                        embedded.vectors.astype("<f4").tobytes(),
                    ),
                )
                connection.execute("INSERT INTO words (rowid, text) VALUES (?, ?)", (made.lastrowid, chunk.text))
            windows = sum(len(embedded.vectors) for embedded in passages)
            connection.execute("UPDATE state SET windows = windows + ?", (windows,))

    @_on_thread
    def count(self, store: str, file_id: str) -> int:
        with self._open(store) as connection:
            if connection is None:
                return 0
            query = "SELECT COUNT(*) FROM passages JOIN documents AS d ON d.number = document WHERE file_id = ?"
            return connection.execute(query, (file_id,)).fetchone()[0]

    @_on_thread
    def by_vector(self, store: str, query: np.ndarray, files: Collection[str], limit: int) -> list[int]:
        with self._open(store) as connection:
            if connection is None:
                return []
            wanted = _numbers_of(connection, files)
            removals, windows = connection.execute("SELECT removals, windows FROM state").fetchone()
            (last,) = connection.execute("SELECT COALESCE(MAX(id), 0) FROM passages").fetchone()

            def read(after: int) -> Iterator[Row]:
                rows = "SELECT id, document, vectors FROM passages WHERE id > ? AND id <= ? ORDER BY id"
                return connection.execute(rows, (after, last))

            state = StoreState(removals=removals, last=last, windows=windows, dimensions=len(query))
            blocks = self._cache.blocks(store, state, read)
            return nearest(blocks, query, wanted, limit)

    @_on_thread
    def by_words(self, store: str, query: str, files: Collection[str], limit: int) -> list[int]:
        words = query_words(query)
        with self._open(store) as connection:
            if connection is None or not words:
                return []
            rows = connection.execute(
                "SELECT words.rowid FROM words JOIN passages ON passages.id = words.rowid WHERE words MATCH ? "
                "AND passages.document IN (SELECT value FROM json_each(?)) ORDER BY words.rank LIMIT ?",
                (
                    " OR ".join(f'"{word}"' for word in words),
                    _ids.encode(_numbers_of(connection, files)).decode(),
                    limit,
                ),
            )
            return [found for (found,) in rows]

    @_on_thread
    def passages(self, store: str, ids: Sequence[int]) -> list[Held]:
        with self._open(store) as connection:
            if connection is None:
                return []
            rows = connection.execute(
                "SELECT p.id, file_id, p.number, page_starts, start, p.text, windows, vectors FROM passages AS p "
                "JOIN documents AS d ON d.number = p.document WHERE p.id IN (SELECT value FROM json_each(?))",
                (_ids.encode(list(ids)).decode(),),
            )
            held = {row[0]: _held(row) for row in rows}
        return [held[each] for each in ids if each in held]

    @_on_thread
    def remove(self, store: str, file_id: str) -> None:
        with self._open(store, writes=True) as connection:
            if connection is not None:
                self._remove(connection, file_id)

    @_on_thread
    def drop(self, store: str) -> None:
        self._cache.forget(store)
        with _told_as_unavailable():
            for path in self._folder.glob(f"{_checked(store)}.sqlite*"):
                path.unlink(missing_ok=True)

    async def close(self) -> None:
        self._cache.clear()

    def _remove(self, connection: sqlite3.Connection, file_id: str) -> None:
        number = _number_of(connection, file_id)
        if number is None:
            return
        connection.execute(
            "INSERT INTO words (words, rowid, text) SELECT 'delete', id, text FROM passages WHERE document = ?",
            (number,),
        )
        span = np.dtype("<i8").itemsize * 2
        connection.execute(
            "UPDATE state SET removals = removals + 1, windows = windows - "
            "(SELECT COALESCE(SUM(LENGTH(windows)), 0) / ? FROM passages WHERE document = ?)",
            (span, number),
        )
        connection.execute("DELETE FROM passages WHERE document = ?", (number,))
        connection.execute("DELETE FROM documents WHERE number = ?", (number,))

    def _create(self, store: str) -> None:
        """Nobody sees a file without its tables."""
        path = self._path(store)
        half = path.with_name(f"{path.name}-new")
        with self._creating, _told_as_unavailable():
            if path.exists():
                return
            half.unlink(missing_ok=True)
            with closing(sqlite3.connect(half, isolation_level=None)) as connection:
                half.chmod(0o600)
                connection.execute("PRAGMA journal_mode = WAL")
                connection.executescript(SCHEMA)
            half.replace(path)

    def _path(self, store: str) -> Path:
        return self._folder / f"{_checked(store)}.sqlite"

    @contextmanager
    def _open(self, store: str, *, writes: bool = False) -> Iterator[sqlite3.Connection | None]:
        """One transaction; None where the store holds nothing. One that writes begins as such: a transaction that has
        read cannot write any more once another has."""
        path = self._path(store)
        if not path.exists():
            yield None
            return
        # Read and write, but do not make: a store that was dropped a moment ago stays so.
        address = f"file:{quote(str(path))}?mode=rw"
        with (
            _told_as_unavailable(),
            closing(sqlite3.connect(address, timeout=BUSY_SECONDS, isolation_level=None, uri=True)) as connection,
        ):
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA secure_delete = ON")  # what was removed does not stay in free pages
            with transaction(connection, writes=writes):
                yield connection


@contextmanager
def _told_as_unavailable() -> Iterator[None]:
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        raise IndexUnavailableError(f"the index cannot be read or written now: {type(error).__name__}") from error


def _checked(store: str) -> str:
    """It becomes a file's name."""
    if not _NAME.fullmatch(store):
        raise ValueError(f"{store!r} is no name of a store")
    return store


def _number_of(connection: sqlite3.Connection, file_id: str) -> int | None:
    row = connection.execute("SELECT number FROM documents WHERE file_id = ?", (file_id,)).fetchone()
    return None if row is None else row[0]


def _numbers_of(connection: sqlite3.Connection, files: Collection[str]) -> list[int]:
    query = "SELECT number FROM documents WHERE file_id IN (SELECT value FROM json_each(?))"
    return [number for (number,) in connection.execute(query, (_ids.encode(list(files)).decode(),))]


def _held(row: tuple[int, str, int, bytes, int, str, bytes, bytes]) -> Held:
    passage_id, file_id, number, page_starts, start, text, windows, vectors = row
    spans = np.frombuffer(windows, "<i8").reshape(-1, 2).tolist()
    passage = Passage(Chunk(start, start + len(text), text), tuple((begin, end) for begin, end in spans))
    embedded = EmbeddedPassage(passage, np.frombuffer(vectors, "<f4").reshape(len(spans), -1))
    return Held(passage_id, file_id, number, _page_starts(page_starts), embedded)


def _page_starts(data: bytes) -> tuple[int, ...]:
    return tuple(np.frombuffer(data, "<i8").tolist())
