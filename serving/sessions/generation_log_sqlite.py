"""The log in one SQLite file: streams outlive the API process, and processes on one machine hand them to each other.

Everything runs on one thread of its own, which puts all that waits into one transaction: a commit costs the same for
one token as for those of a hundred streams. A process shows that it lives by a lock on a file beside the database,
which the kernel takes away with it: no clock is asked.

The file is readable by its owner alone. A commit survives the end of the process, and the operating system's after the
next checkpoint (WAL, synchronous = NORMAL).
"""

import asyncio
import fcntl
import os
import queue
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from serving.errors import ConfigError, StreamLogError
from serving.facts_file import make_private, prepare, purge, without_cursor
from serving.sessions.generation_log import LOG_FULL, LOG_UNAVAILABLE, LogLimits, NotHeldError, Page, Signals

BUSY_SECONDS = 5.0  # how long another process may hold the file
MOST_IN_ONE_COMMIT = 1024
_FREED_PAGES = 256  # given back to the file system at a time
_DROPPED = 16  # entries that are looked up at a time, where room is made
# Neither reads the table: its rows hold prompts, and where the log is full room is made at every write.
ENDED = "SELECT stream_id, size FROM streams INDEXED BY ended_sizes WHERE ended = 1"
OLDEST = f"SELECT stream_id, size FROM streams WHERE ended = 1 ORDER BY rowid LIMIT {_DROPPED}"

_SCHEMA = """
CREATE TABLE IF NOT EXISTS streams (
    stream_id TEXT PRIMARY KEY,
    admitted BLOB NOT NULL,
    holder TEXT NOT NULL,
    ended INTEGER NOT NULL DEFAULT 0,
    cancelled INTEGER NOT NULL DEFAULT 0,
    reads INTEGER NOT NULL DEFAULT 0,
    size INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS unfinished ON streams (holder) WHERE ended = 0;
CREATE INDEX IF NOT EXISTS ended_by_age ON streams (ended) WHERE ended = 1;
CREATE INDEX IF NOT EXISTS ended_sizes ON streams (ended, stream_id, size) WHERE ended = 1;
CREATE TABLE IF NOT EXISTS records (
    stream_id TEXT NOT NULL,
    position INTEGER NOT NULL,
    record BLOB NOT NULL,
    PRIMARY KEY (stream_id, position)
) WITHOUT ROWID;
"""

T = TypeVar("T")


@dataclass(slots=True)
class _Job:
    work: Callable[[sqlite3.Connection], Any]
    loop: asyncio.AbstractEventLoop
    done: asyncio.Future[Any]
    outcome: Any = None
    failure: Exception | None = None


class SqliteGenerationLog:
    shared = True

    def __init__(
        self, path: Path, limits: LogLimits | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Raises ConfigError where the file cannot be used."""
        self._path = path
        self._limits = limits or LogLimits()
        self._clock = clock
        self._holder = secrets.token_hex(8)
        self._holders = path.with_name(f"{path.name}.holders")
        self._expires: dict[str, float] = {}  # ended entries, by this process's clock
        self._size = 0
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._connection: sqlite3.Connection | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._holders.mkdir(mode=0o700, exist_ok=True)
            make_private(path)
            self._life = _lock(self._holders / self._holder, create=True)
            self._connect().close()
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(f"the log of streams at {path} cannot be used: {error}", param="streams.path") from error
        self._thread = threading.Thread(target=self._run, name="generation-log", daemon=True)
        self._thread.start()

    async def create(self, stream_id: str, admitted: bytes) -> None:
        def work(db: sqlite3.Connection) -> None:
            self._make_room(db, len(admitted))
            row = (stream_id, admitted, self._holder, len(admitted))
            db.execute("INSERT INTO streams (stream_id, admitted, holder, size) VALUES (?, ?, ?, ?)", row)

        await self._do(work)

    async def append(self, stream_id: str, first: int, records: Sequence[bytes], *, ended: bool = False) -> None:
        await self._do(lambda db: self._append(db, stream_id, first, records, ended))

    async def rewrite(self, stream_id: str, admitted: bytes, records: Sequence[bytes], *, ended: bool) -> None:
        def work(db: sqlite3.Connection) -> None:
            found = db.execute("SELECT holder FROM streams WHERE stream_id = ?", (stream_id,)).fetchone()
            if found is not None and found[0] != self._holder:
                raise NotHeldError(stream_id)
            self._drop(db, [stream_id])
            self._make_room(db, len(admitted))
            row = (stream_id, admitted, self._holder, len(admitted))
            db.execute("INSERT INTO streams (stream_id, admitted, holder, size) VALUES (?, ?, ?, ?)", row)
            self._append(db, stream_id, 0, records, ended)

        await self._do(work)

    async def admitted(self, stream_id: str) -> bytes | None:
        def work(db: sqlite3.Connection) -> bytes | None:
            found = db.execute("SELECT admitted FROM streams WHERE stream_id = ?", (stream_id,)).fetchone()
            return None if found is None else found[0]

        return await self._do(work)

    async def read(self, stream_id: str, after: int) -> Page | None:
        def work(db: sqlite3.Connection) -> Page | None:
            found = db.execute("SELECT ended FROM streams WHERE stream_id = ?", (stream_id,)).fetchone()
            if found is None:
                return None
            where = "stream_id = ? AND position >= ? ORDER BY position"
            rows = db.execute(f"SELECT record FROM records WHERE {where}", (stream_id, after))
            return Page([row[0] for row in rows], bool(found[0]))

        return await self._do(work)

    async def cancel(self, stream_id: str) -> bool:
        statement = "UPDATE streams SET cancelled = 1 WHERE stream_id = ? AND ended = 0"

        def work(db: sqlite3.Connection) -> bool:
            with closing(db.execute(statement, (stream_id,))) as cursor:
                return cursor.rowcount > 0

        return await self._do(work)

    async def touch(self, stream_id: str) -> None:
        statement = "UPDATE streams SET reads = reads + 1 WHERE stream_id = ?"
        await self._do(lambda db: db.execute(statement, (stream_id,)).close())

    async def signals(self) -> dict[str, Signals]:
        def work(db: sqlite3.Connection) -> dict[str, Signals]:
            query = "SELECT stream_id, cancelled, reads FROM streams WHERE ended = 0 AND holder = ?"
            return {
                name: Signals(bool(cancelled), reads) for name, cancelled, reads in db.execute(query, (self._holder,))
            }

        return await self._do(work)

    async def claim(self) -> list[str]:
        def work(db: sqlite3.Connection) -> list[str]:
            rows = db.execute("SELECT DISTINCT holder FROM streams WHERE ended = 0 AND holder != ?", (self._holder,))
            claimed: list[str] = []
            for holder in [row[0] for row in rows if not self._lives(row[0])]:
                found = db.execute("SELECT stream_id FROM streams WHERE ended = 0 AND holder = ?", (holder,))
                claimed += [row[0] for row in found]
                db.execute("UPDATE streams SET holder = ? WHERE ended = 0 AND holder = ?", (self._holder, holder))
            return claimed

        return await self._do(work)

    async def release(self, stream_ids: Sequence[str]) -> None:
        def work(db: sqlite3.Connection) -> None:
            rows = [(stream_id, self._holder) for stream_id in stream_ids]
            db.executemany("UPDATE streams SET holder = '' WHERE stream_id = ? AND holder = ? AND ended = 0", rows)

        await self._do(work)

    async def entries(self) -> list[str]:
        return await self._do(lambda db: [row[0] for row in db.execute("SELECT stream_id FROM streams")])

    async def drop(self, stream_ids: Sequence[str]) -> None:
        await self._do(lambda db: self._drop(db, stream_ids))
        try:
            await asyncio.to_thread(self._purge)
        except sqlite3.Error as error:
            raise StreamLogError("the log of streams cannot be written", code=LOG_UNAVAILABLE) from error

    async def trim(self) -> None:
        def work(db: sqlite3.Connection) -> None:
            now = self._clock()
            ended = dict(db.execute(ENDED).fetchall())
            self._expires = {name: self._expires.get(name, now + self._limits.retain_seconds) for name in ended}
            gone = [name for name, expires in self._expires.items() if expires <= now]
            self._drop(db, gone)
            (running,) = db.execute("SELECT coalesce(sum(size), 0) FROM streams WHERE ended = 0").fetchone()
            self._size = running + sum(ended.values()) - sum(ended[name] for name in gone)

        def shrink(db: sqlite3.Connection) -> None:
            free = db.execute("PRAGMA freelist_count").fetchone()[0]
            for _ in range(min(free, _FREED_PAGES)):
                db.execute("PRAGMA incremental_vacuum(1)")  # however many are asked for, `execute` frees one

        await self._do(work)
        await self._do(shrink)

    async def close(self) -> None:
        self._jobs.put(None)
        await asyncio.to_thread(self._thread.join)
        (self._holders / self._holder).unlink(missing_ok=True)
        os.close(self._life)

    def _append(
        self, db: sqlite3.Connection, stream_id: str, first: int, records: Sequence[bytes], ended: bool
    ) -> None:
        found = db.execute("SELECT holder FROM streams WHERE stream_id = ?", (stream_id,)).fetchone()
        if found is None:
            raise StreamLogError("the log has lost this stream", code=LOG_UNAVAILABLE)
        if found[0] != self._holder:
            raise NotHeldError(stream_id)
        size = sum(map(len, records))
        self._make_room(db, size)
        rows = [(stream_id, first + i, record) for i, record in enumerate(records)]
        db.executemany("INSERT INTO records (stream_id, position, record) VALUES (?, ?, ?)", rows)
        db.execute("UPDATE streams SET size = size + ?, ended = ? WHERE stream_id = ?", (size, ended, stream_id))

    def _make_room(self, db: sqlite3.Connection, size: int) -> None:
        """Of other processes' writes it knows since the last `trim`."""
        most = self._limits.max_bytes - size
        while self._size > most:
            oldest = db.execute(OLDEST).fetchall()
            if not oldest:
                raise StreamLogError("the log of streams is full", code=LOG_FULL)
            while self._size > most and oldest:
                stream_id, freed = oldest.pop(0)
                self._drop(db, [stream_id])
                self._size -= freed
        self._size += size

    def _drop(self, db: sqlite3.Connection, stream_ids: Sequence[str]) -> None:
        rows = [(stream_id,) for stream_id in stream_ids]
        db.executemany("DELETE FROM streams WHERE stream_id = ?", rows)
        db.executemany("DELETE FROM records WHERE stream_id = ?", rows)

    def _lives(self, holder: str) -> bool:
        """Whether a process has this name; forgets it where none has."""
        if not holder:
            return False
        try:
            descriptor = _lock(self._holders / holder, create=False)
        except FileNotFoundError:
            return False
        except OSError:  # locked, or not ours to open: somebody is there
            return True
        (self._holders / holder).unlink(missing_ok=True)
        os.close(descriptor)
        return False

    async def _do(self, work: Callable[[sqlite3.Connection], T]) -> T:
        loop = asyncio.get_running_loop()
        job = _Job(work, loop, loop.create_future())
        self._jobs.put(job)
        return await job.done

    def _run(self) -> None:
        closing = False
        while not closing:
            jobs = [self._jobs.get()]
            while len(jobs) < MOST_IN_ONE_COMMIT and not self._jobs.empty():
                jobs.append(self._jobs.get())
            closing = None in jobs
            batch = [job for job in jobs if job is not None]
            self._commit(batch)
            for loop in {job.loop for job in batch}:
                if not loop.is_closed():
                    loop.call_soon_threadsafe(_settle, [job for job in batch if job.loop is loop])
        if self._connection is not None:
            self._connection.close()

    def _commit(self, batch: list[_Job]) -> None:
        try:
            db = self._connection = self._connection or self._connect()
            db.execute("BEGIN IMMEDIATE")
            for job in batch:
                self._work(db, job)
            db.execute("COMMIT")
        except sqlite3.Error as error:
            self._reset()
            code = LOG_FULL if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL else LOG_UNAVAILABLE
            for job in batch:
                job.failure = StreamLogError("the log of streams cannot be written", code=code)

    def _work(self, db: sqlite3.Connection, job: _Job) -> None:
        """Raises sqlite3.Error: then the whole transaction is lost. What a job refuses is its own failure alone."""
        db.execute("SAVEPOINT job")
        try:
            job.outcome = without_cursor(job.work(db))
        except sqlite3.Error:
            raise
        except Exception as error:  # handed to whoever waits; the thread goes on
            job.failure = error
            db.execute("ROLLBACK TO job")
        db.execute("RELEASE job")

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self._path, isolation_level=None, timeout=BUSY_SECONDS, check_same_thread=False)
        prepare(db, _SCHEMA)
        return db

    def _purge(self) -> None:
        with closing(self._connect()) as db:
            purge(db)

    def _reset(self) -> None:
        """A connection that failed is not trusted with the next transaction."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _settle(batch: list[_Job]) -> None:
    for job in batch:
        if job.done.done():  # nobody waits any more
            continue
        if job.failure is not None:
            job.done.set_exception(job.failure)
        else:
            job.done.set_result(job.outcome)


def _lock(path: Path, *, create: bool) -> int:
    """Raises OSError where another process has it."""
    descriptor = os.open(path, os.O_RDWR | (os.O_CREAT if create else 0), 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
