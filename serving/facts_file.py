"""One SQLite file, used from threads and by several processes of one machine; and what all such files share."""

import asyncio
import fcntl
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TypeVar

from serving.errors import ConfigError, OverloadedError

BUSY_SECONDS = 5.0  # how long another process may hold the file
RETRY_SECONDS = 30.0

T = TypeVar("T")


class FactsFile:
    def __init__(self, folder: Path, schema: str, setting: str = "files.folder") -> None:
        """`setting` is what names the folder. Raises ConfigError where it or the file in it cannot be used."""
        path = folder / "facts.sqlite"
        self._lock = threading.Lock()
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._connection = sqlite3.connect(
                path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            path.chmod(0o600)
            prepare(self._connection, schema)
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(f"{setting}: {path} cannot be used: {error}", param=setting.rpartition(".")[2]) from error

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All of the block or nothing."""
        with self._lock, transaction(self._connection) as connection:
            yield connection

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """`work` in one transaction, on a thread. Raises OverloadedError where the disk does not do it."""

        def transact() -> T:
            with self.transaction() as connection:
                return without_cursor(work(connection))

        return await on_disk(transact)

    async def purge(self) -> None:
        """What was deleted is gone from the disk too. Raises OverloadedError."""

        def work() -> None:
            with self._lock:
                purge(self._connection)

        await on_disk(work)

    def close(self) -> None:
        with self._lock:
            self._connection.close()


def make_private(path: Path) -> None:
    """An empty file for its owner alone, where there is none: SQLite would let others read it. Raises OSError."""
    if not path.exists():
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))


def refuse_other_database(connection: sqlite3.Connection, path: Path, table: str, *, kind: str, setting: str) -> None:
    """Before anything is done to a file that a slip of the pen may have named. Raises ConfigError where it is another's
    database, sqlite3.Error where it is none."""
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if tables and table not in tables:
        raise ConfigError(f"{path}: not a {kind}: it has {', '.join(sorted(tables))}", param=setting)


@contextmanager
def transaction(connection: sqlite3.Connection, *, writes: bool = True) -> Iterator[sqlite3.Connection]:
    """All of the block or nothing, of a connection that begins none by itself."""
    connection.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
    try:
        yield connection
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # a full disk has ended it
            connection.execute("ROLLBACK")
        raise


def prepare(connection: sqlite3.Connection, schema: str) -> None:
    """A new connection, for a file that several processes use and from which what is deleted has to be gone."""
    connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # of a new file: `purge` can give its free pages back
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA secure_delete = ON")  # FAST leaves what was written where pages were split
    connection.executescript(schema)


def add_column(connection: sqlite3.Connection, table: str, name: str, kind: str) -> bool:
    """Whether the table, which an earlier version of weft may have made, lacked it. Within a transaction."""
    if name in {known for _, known, *_ in connection.execute(f"PRAGMA table_info({table})")}:
        return False
    connection.execute(f"ALTER TABLE {table} ADD COLUMN {name} {kind}")
    return True


def without_cursor(outcome: T) -> T:
    """A cursor stays on the thread of its connection: whoever frees it elsewhere resets its statement, which may be
    running again by then ("bad parameter or other API misuse")."""
    assert not isinstance(outcome, sqlite3.Cursor), "close the cursor, or take its rows"
    return outcome


def sqlite_reason(error: sqlite3.Error) -> str:
    """For a log: SQLite's name of what is wrong, as SQLITE_FULL. Its sentence may repeat what somebody wrote."""
    return getattr(error, "sqlite_errorname", type(error).__name__)


def purge(connection: sqlite3.Connection) -> None:
    """Gives free pages back, and empties the write-ahead log, whose frames hold what pages held before. Outside of a
    transaction. Raises sqlite3.OperationalError where a reader holds the log for longer than the connection waits."""
    connection.executescript("PRAGMA incremental_vacuum")  # `execute` would free one page
    (is_busy, *_) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    if is_busy:
        raise sqlite3.OperationalError("the file is being read: its write-ahead log still holds what was deleted")


async def on_disk(work: Callable[[], T]) -> T:
    """`work` on a thread. Raises OverloadedError where the disk does not do it."""
    try:
        return await asyncio.to_thread(work)
    except (OSError, sqlite3.Error) as error:
        raise OverloadedError(
            f"files cannot be read or written now: {type(error).__name__}",
            retry_after=RETRY_SECONDS,
            code="storage_unavailable",
        ) from error


def lock_file(path: Path) -> BinaryIO | None:
    """Held until it is closed; None where another process has it. The kernel takes it back when its process ends."""
    file = path.open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file
