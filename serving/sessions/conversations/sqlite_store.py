"""Conversations in one SQLite file, or in this process's memory.

One thread holds the connection. The file is readable by its owner alone; a commit survives the end of the process.
"""

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from serving.errors import ConfigError, ConversationStoreError
from serving.facts_file import make_private, prepare, purge, sqlite_reason, transaction, without_cursor
from serving.observability.logs import log_event
from serving.sessions.conversations.quota import UNBOUNDED, Quota, Size
from serving.sessions.conversations.records import Owner
from serving.sessions.conversations.store import Edit, Key, NoTreeError, Rows

BUSY_SECONDS = 5.0  # how long another process may hold the file
MEMORY = ":memory:"

_SCHEMA = """
CREATE TABLE IF NOT EXISTS trees (tree TEXT PRIMARY KEY, tenant TEXT NOT NULL, user TEXT NOT NULL, used REAL NOT NULL);
CREATE INDEX IF NOT EXISTS trees_of ON trees (tenant, user);
CREATE TABLE IF NOT EXISTS rows (
    tree TEXT NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL, value BLOB NOT NULL, PRIMARY KEY (tree, kind, name)
);
CREATE TABLE IF NOT EXISTS sizes (tree TEXT PRIMARY KEY, items INTEGER NOT NULL, bytes INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS held (tenant TEXT PRIMARY KEY, trees INTEGER NOT NULL, bytes INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS leases (name TEXT PRIMARY KEY, expires REAL NOT NULL);
CREATE INDEX IF NOT EXISTS leases_by_end ON leases (expires);
"""
# Of trees that a version without sizes has written.
_MEASURE = """
INSERT INTO sizes
SELECT tree, coalesce(sum(kind = 'item'), 0), coalesce(sum(length(name) + length(value)), 0)
FROM trees LEFT JOIN rows USING (tree) WHERE tree NOT IN (SELECT tree FROM sizes) GROUP BY tree
"""
_SUM = (
    "INSERT OR REPLACE INTO held SELECT tenant, count(*), sum(bytes) FROM trees JOIN sizes USING (tree) GROUP BY tenant"
)

T = TypeVar("T")

log = logging.getLogger(__name__)


class SqliteConversationStore:
    def __init__(
        self,
        path: Path | None,
        retain_seconds: float | None = None,
        clock: Callable[[], float] = time.time,
        lease_clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """None: in memory; `retain_seconds` None: for ever. Trees are retained by the date, which a restart leaves; all
        processes of a machine have one monotonic clock for their leases. Raises ConfigError where the file cannot be
        used."""
        self._path = path
        self._retain = retain_seconds
        self._clock = clock
        self._lease_clock = lease_clock
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="conversations")
        try:
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                make_private(path)
            self._db = self._connect()
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(f"conversations at {path} cannot be kept: {error}", param="conversations.path") from error

    async def create(self, tree: str, owner: Owner, rows: Rows, quota: Quota = UNBOUNDED) -> None:
        def work(db: sqlite3.Connection) -> None:
            db.execute("INSERT INTO trees VALUES (?, ?, ?, ?)", (tree, owner.tenant, owner.user, self._clock()))
            db.execute("INSERT INTO sizes VALUES (?, 0, 0)", (tree,))
            db.execute("INSERT OR IGNORE INTO held VALUES (?, 0, 0)", (owner.tenant,))
            db.execute("UPDATE held SET trees = trees + 1 WHERE tenant = ?", (owner.tenant,))
            _write(db, tree, owner.tenant, Edit(rows), quota, trees=1)

        await self._do(work)

    async def owner(self, tree: str) -> Owner | None:
        def work(db: sqlite3.Connection) -> Owner | None:
            found = db.execute("SELECT tenant, user FROM trees WHERE tree = ?", (tree,)).fetchone()
            return None if found is None else Owner(*found)

        return await self._do(work)

    async def read(self, tree: str, kind: str, names: Sequence[str] | None = None) -> dict[str, bytes]:
        def work(db: sqlite3.Connection) -> dict[str, bytes]:
            if names is None:
                query = "SELECT name, value FROM rows WHERE tree = ? AND kind = ? ORDER BY name"
                return dict(db.execute(query, (tree, kind)).fetchall())
            return {name: value for (_, name), value in _get(db, tree, [(kind, name) for name in names]).items()}

        return await self._do(work)

    async def change(
        self, tree: str, keys: Sequence[Key], work: Callable[[Rows], Edit], quota: Quota = UNBOUNDED
    ) -> Any:
        def changed(db: sqlite3.Connection) -> Any:
            found = db.execute("SELECT tenant FROM trees WHERE tree = ?", (tree,)).fetchone()
            if found is None:
                raise NoTreeError(tree)
            db.execute("UPDATE trees SET used = ? WHERE tree = ?", (self._clock(), tree))
            edit = work(_get(db, tree, keys))
            _write(db, tree, found[0], edit, quota)
            return edit.outcome

        return await self._do(changed)

    async def drop(self, tree: str) -> None:
        await self._do(lambda db: _drop(db, [tree]))

    async def held(self, tenant: str) -> Size:
        def work(db: sqlite3.Connection) -> Size:
            found = db.execute("SELECT trees, bytes FROM held WHERE tenant = ?", (tenant,)).fetchone()
            return Size() if found is None else Size(trees=found[0], bytes=found[1])

        return await self._do(work)

    async def trees(self, tenant: str, user: str | None = None) -> list[str]:
        def work(db: sqlite3.Connection) -> list[str]:
            where, values = ("tenant = ?", [tenant]) if user is None else ("tenant = ? AND user = ?", [tenant, user])
            return [row[0] for row in db.execute(f"SELECT tree FROM trees WHERE {where} ORDER BY tree", values)]

        return await self._do(work)

    async def lease(self, names: Sequence[str], seconds: float) -> None:
        def work(db: sqlite3.Connection) -> None:
            rows = [(name, self._lease_clock() + seconds) for name in names]
            db.executemany("INSERT OR REPLACE INTO leases VALUES (?, ?)", rows)

        await self._do(work)

    async def release(self, names: Sequence[str]) -> None:
        rows = [(name,) for name in names]
        await self._do(lambda db: db.executemany("DELETE FROM leases WHERE name = ?", rows).close())

    async def expired(self, seconds: float) -> list[str]:
        def work(db: sqlite3.Connection) -> list[str]:
            # One that lasts too long is from before the machine's last start: this clock began anew with it.
            now, over = self._lease_clock(), "expires <= ?1 OR expires > ?1 + ?2"
            query = f"SELECT name FROM leases WHERE {over} ORDER BY name"
            found = [row[0] for row in db.execute(query, (now, seconds))]
            db.execute(f"UPDATE leases SET expires = ?1 + ?2 WHERE {over}", (now, seconds))
            return found

        return await self._do(work)

    async def trim(self) -> None:
        if self._retain is None:
            return
        retain = self._retain

        def work(db: sqlite3.Connection) -> None:
            found = db.execute("SELECT tree FROM trees WHERE used <= ?", (self._clock() - retain,))
            _drop(db, [row[0] for row in found])

        await self._do(work)

    async def purge(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._purge)

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._db.close)
        self._thread.shutdown()

    async def _do(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """In one transaction. It goes on where whoever waits is cancelled: a thread cannot be stopped."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._transact, work)

    def _transact(self, work: Callable[[sqlite3.Connection], T]) -> T:
        with _used(), transaction(self._db) as db:
            return without_cursor(work(db))

    def _purge(self) -> None:
        with _used():
            purge(self._db)

    def _connect(self) -> sqlite3.Connection:
        place = MEMORY if self._path is None else self._path
        db = sqlite3.connect(place, isolation_level=None, timeout=BUSY_SECONDS, check_same_thread=False)
        prepare(db, _SCHEMA)
        db.execute("BEGIN IMMEDIATE")
        if db.execute(_MEASURE).rowcount:
            db.execute(_SUM)
        db.execute("COMMIT")
        return db


@contextmanager
def _used() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        log_event(log, "the store of conversations cannot be used", level=logging.WARNING, why=sqlite_reason(error))
        raise ConversationStoreError("the store of conversations cannot be used now") from error


def _get(db: sqlite3.Connection, tree: str, keys: Sequence[Key]) -> dict[Key, bytes]:
    found: dict[Key, bytes] = {}
    for key in keys:
        row = db.execute("SELECT value FROM rows WHERE tree = ? AND kind = ? AND name = ?", (tree, *key)).fetchone()
        if row is not None:
            found[key] = row[0]
    return found


def _write(db: sqlite3.Connection, tree: str, tenant: str, edit: Edit, quota: Quota, *, trees: int = 0) -> None:
    """Raises QuotaError."""
    old = [(kind, name, len(value)) for (kind, name), value in _get(db, tree, [*edit.put, *edit.drop]).items()]
    db.executemany("DELETE FROM rows WHERE tree = ? AND kind = ? AND name = ?", [(tree, *key) for key in edit.drop])
    db.executemany(
        "INSERT OR REPLACE INTO rows VALUES (?, ?, ?, ?)", [(tree, *key, value) for key, value in edit.put.items()]
    )
    new = [(kind, name, len(value)) for (kind, name), value in edit.put.items()]
    growth = Size(
        trees=trees,
        items=sum(row[0] == "item" for row in new) - sum(row[0] == "item" for row in old),
        bytes=sum(len(row[1]) + row[2] for row in new) - sum(len(row[1]) + row[2] for row in old),
    )
    query = "UPDATE sizes SET items = items + ?, bytes = bytes + ? WHERE tree = ? RETURNING items"
    (items,) = db.execute(query, (growth.items, growth.bytes, tree)).fetchone()
    query = "UPDATE held SET bytes = bytes + ? WHERE tenant = ? RETURNING trees, bytes"
    all_trees, all_bytes = db.execute(query, (growth.bytes, tenant)).fetchone()
    quota.check(Size(all_trees, items, all_bytes), growth)


def _drop(db: sqlite3.Connection, trees: Sequence[str]) -> None:
    for tree in trees:
        less = "trees = trees - 1, bytes = bytes - (SELECT bytes FROM sizes WHERE tree = ?1)"
        db.execute(f"UPDATE held SET {less} WHERE tenant = (SELECT tenant FROM trees WHERE tree = ?1)", (tree,))
        for table in ("rows", "sizes", "trees"):
            db.execute(f"DELETE FROM {table} WHERE tree = ?", (tree,))
    db.execute("DELETE FROM held WHERE trees = 0")
