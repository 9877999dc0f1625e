"""The entries of all memories in one SQLite file. One thread holds the connection."""

import asyncio
import logging
import re
import sqlite3
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from serving.errors import ConfigError, ConversationStoreError
from serving.facts_file import make_private, prepare, purge, sqlite_reason, transaction, without_cursor
from serving.observability.logs import log_event
from serving.orchestrator.memory.entries import Entry, Exchange, Person

_BUSY_SECONDS = 5.0
_MOST_WORDS = 32  # of a question, that are searched for
_SCHEMA = """
CREATE TABLE IF NOT EXISTS entries (
    id INTEGER PRIMARY KEY AUTOINCREMENT, tenant TEXT NOT NULL, user TEXT NOT NULL, level INTEGER NOT NULL,
    text TEXT NOT NULL, digest TEXT NOT NULL, created REAL NOT NULL
);
CREATE INDEX IF NOT EXISTS entries_of ON entries (tenant, user, level, id);
CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5 (text, tokenize = 'porter unicode61');
CREATE TABLE IF NOT EXISTS switches (
    tenant TEXT NOT NULL, user TEXT NOT NULL, is_on INTEGER NOT NULL, PRIMARY KEY (tenant, user)
);
CREATE TABLE IF NOT EXISTS lives (
    number INTEGER PRIMARY KEY AUTOINCREMENT, tenant TEXT NOT NULL, user TEXT NOT NULL, UNIQUE (tenant, user)
);
"""
_COLUMNS = "entries.id, entries.level, entries.text, entries.created, entries.digest"
_OF = "entries.tenant = ? AND entries.user = ?"
# They stand in most questions, and would find whatever has them.
_COMMON = frozenset(
    "a about an and are be been by can could did do does for from had has have how i in is it its me my of on or our "
    "say says said tell that the their they this to us was we were what when where which who why will with would you "
    "your".split()
)

T = TypeVar("T")

log = logging.getLogger(__name__)


class MemoryStore:
    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        """Raises ConfigError where the file cannot be used."""
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="memory")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            make_private(path)
            self._db = sqlite3.connect(path, timeout=_BUSY_SECONDS, check_same_thread=False, isolation_level=None)
            prepare(self._db, _SCHEMA)
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(f"the memory at {path} cannot be kept: {error}", param="memory.path") from error

    async def life(self, person: Person) -> int:
        """The number of the memory's life, which the first turn begins and its erasure ends. No number comes again."""

        def work(db: sqlite3.Connection) -> int:
            query = "SELECT number FROM lives WHERE tenant = ? AND user = ?"
            if (found := db.execute(query, _key(person)).fetchone()) is None:
                db.execute("INSERT INTO lives (tenant, user) VALUES (?, ?)", _key(person))
                found = db.execute(query, _key(person)).fetchone()
            return found[0]

        return await self._do(work)

    async def add(self, person: Person, exchange: Exchange, most: int, life: int) -> bool:
        """Above `most` entries of the person the oldest go. False, and nothing done, where the memory was erased since
        the turn began in its `life`: what is erased would be there again."""

        def work(db: sqlite3.Connection) -> bool:
            query = "SELECT count(*) FROM lives WHERE number = ? AND tenant = ? AND user = ?"
            if not db.execute(query, (life, *_key(person))).fetchone()[0]:
                return False
            self._put(db, person, 0, exchange.text, exchange.digest)
            query = f"SELECT id FROM entries WHERE {_OF} ORDER BY id DESC LIMIT -1 OFFSET ?"
            _drop(db, [row[0] for row in db.execute(query, (*_key(person), most))])
            return True

        return await self._do(work)

    async def entries(self, person: Person, level: int | None = None) -> list[Entry]:
        """The oldest first."""

        def work(db: sqlite3.Connection) -> list[Entry]:
            wanted = "" if level is None else " AND level = ?"
            query = f"SELECT {_COLUMNS} FROM entries WHERE {_OF}{wanted} ORDER BY id"
            return _entries(db.execute(query, (*_key(person), *(() if level is None else (level,)))))

        return await self._do(work)

    async def relevant(self, person: Person, question: str, most: int, without: Collection[str]) -> list[Entry]:
        """Exchanges that share words with the question, by BM25, the best first; none of those digests."""
        words = [word for word in re.findall(r"\w+", question.lower()) if word not in _COMMON][:_MOST_WORDS]
        if not words:
            return []
        wanted = " OR ".join(f'"{word}"' for word in words)

        def work(db: sqlite3.Connection) -> list[Entry]:
            query = (
                f"SELECT {_COLUMNS} FROM words JOIN entries ON entries.id = words.rowid "
                f"WHERE words MATCH ? AND {_OF} AND entries.level = 0 ORDER BY bm25(words), entries.id DESC LIMIT ?"
            )
            found = _entries(db.execute(query, (wanted, *_key(person), most + len(without))))
            return [entry for entry in found if entry.digest not in without][:most]

        return await self._do(work)

    async def replace(self, person: Person, old: Sequence[Entry], level: int, text: str) -> bool:
        """One entry in place of others; False, and nothing done, where one of them has been forgotten meanwhile."""

        def work(db: sqlite3.Connection) -> bool:
            ids = [entry.id for entry in old]
            marks = ",".join("?" * len(ids))
            kept = db.execute(f"SELECT count(*) FROM entries WHERE id IN ({marks})", ids).fetchone()[0]
            if kept < len(ids):
                return False
            _drop(db, ids)
            self._put(db, person, level, text, "")
            return True

        return await self._do(work)

    async def forget(self, person: Person, entry_id: int | None = None) -> int:
        """How many entries are gone, from the disk too: the one, or all of them."""

        def work(db: sqlite3.Connection) -> int:
            one = "" if entry_id is None else " AND id = ?"
            query = f"SELECT id FROM entries WHERE {_OF}{one}"
            ids = [row[0] for row in db.execute(query, (*_key(person), *(() if entry_id is None else (entry_id,))))]
            _drop(db, ids)
            _merge_words(db)
            if entry_id is None:
                db.execute("DELETE FROM lives WHERE tenant = ? AND user = ?", _key(person))
            return len(ids)

        gone = await self._do(work)
        if gone or entry_id is None:
            await self._on_thread(lambda: purge(self._db))
        return gone

    async def erase(self, tenant: str, user: str | None, dry_run: bool) -> Mapping[str, int]:
        """What there is of a user, or of the whole tenant; unless it is only looked at, it is gone. Raises
        ConversationStoreError."""
        whose, values = ("tenant = ?", [tenant]) if user is None else ("tenant = ? AND user = ?", [tenant, user])

        def work(db: sqlite3.Connection) -> Mapping[str, int]:
            ids = [row[0] for row in db.execute(f"SELECT id FROM entries WHERE {whose}", values)]
            (switches,) = db.execute(f"SELECT count(*) FROM switches WHERE {whose}", values).fetchone()
            if not dry_run:
                _drop(db, ids)
                _merge_words(db)
                db.execute(f"DELETE FROM switches WHERE {whose}", values)
                db.execute(f"DELETE FROM lives WHERE {whose}", values)
            return {"entries": len(ids), "switches": switches}

        found = await self._do(work)
        if not dry_run:
            await self._on_thread(lambda: purge(self._db))
        return found

    async def is_on(self, person: Person) -> bool | None:
        """None where the person has not said."""

        def work(db: sqlite3.Connection) -> bool | None:
            found = db.execute("SELECT is_on FROM switches WHERE tenant = ? AND user = ?", _key(person)).fetchone()
            return None if found is None else bool(found[0])

        return await self._do(work)

    async def switch(self, person: Person, on: bool) -> None:
        def work(db: sqlite3.Connection) -> None:
            db.execute("INSERT OR REPLACE INTO switches VALUES (?, ?, ?)", (*_key(person), on))

        await self._do(work)

    def close(self) -> None:
        self._thread.submit(self._db.close).result()
        self._thread.shutdown()

    def _put(self, db: sqlite3.Connection, person: Person, level: int, text: str, digest: str) -> None:
        row = (*_key(person), level, text, digest, self._clock())
        query = "INSERT INTO entries (tenant, user, level, text, digest, created) VALUES (?, ?, ?, ?, ?, ?)"
        db.execute("INSERT INTO words (rowid, text) VALUES (?, ?)", (db.execute(query, row).lastrowid, text))

    async def _do(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Raises ConversationStoreError where the file cannot be used now."""

        def committed() -> T:
            with transaction(self._db):
                return without_cursor(work(self._db))

        return await self._on_thread(committed)

    async def _on_thread(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except sqlite3.Error as error:
            log_event(log, "the memory cannot be used", level=logging.WARNING, why=sqlite_reason(error))
            raise ConversationStoreError("the memory cannot be used now") from error


def _key(person: Person) -> tuple[str, str]:
    return person.tenant, person.user


def _drop(db: sqlite3.Connection, ids: Sequence[int]) -> None:
    db.executemany("DELETE FROM entries WHERE id = ?", [(entry_id,) for entry_id in ids])
    db.executemany("DELETE FROM words WHERE rowid = ?", [(entry_id,) for entry_id in ids])


def _merge_words(db: sqlite3.Connection) -> None:
    """The index of words marks what is deleted, and lets it go when its parts are merged: now."""
    db.execute("INSERT INTO words (words) VALUES ('optimize')")


def _entries(rows: sqlite3.Cursor) -> list[Entry]:
    return [
        Entry(id=entry_id, level=level, text=text, created=created, digest=digest)
        for entry_id, level, text, created, digest in rows
    ]
