"""The outbox: events in one SQLite file, in the order in which they were committed, and how far each reader has come.

Every call opens the file anew, so that one which was moved away is made again, under another name of its own. Positions
only grow, and an event is committed as soon as it is written: a process that is killed loses what it had not written,
and the machine, with its power, at most what came after the last checkpoint (WAL, synchronous = NORMAL).

The file is readable by its owner alone.
"""

import json
import secrets
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from serving.errors import ConfigError
from serving.facts_file import make_private, prepare, purge

BUSY_SECONDS = 5.0  # how long another process may hold the file
_TRIMMED_AT_ONCE = 200
_FREED_PAGES = 1024  # given back to the file system at a time

_SCHEMA = """
CREATE TABLE IF NOT EXISTS events (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    time REAL NOT NULL,
    type TEXT NOT NULL,
    event BLOB NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS readers (name TEXT PRIMARY KEY, position INTEGER NOT NULL) STRICT;
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    id: str
    time: float  # seconds since 1970
    type: str
    event: bytes  # JSON
    position: int = 0  # 0: not written yet


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """Which events a reader wants."""

    type: str = ""  # as "weft.request.ended.v1", or its beginning, up to a dot; empty: all
    since: float = 0.0  # seconds since 1970


ALL = Wish()
_COLUMNS = "position, id, time, type, event"
_WISH = "(:type = '' OR substr(type || '.', 1, length(:type) + 1) = :type || '.') AND time >= :since"


class Outbox:
    def __init__(self, path: Path) -> None:
        """Raises ConfigError where the file cannot be used, or is none of this kind."""
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _check_kind(path)
            assert self.name  # made now, before anything is in it
            assert self.secret
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(f"events.outbox: {path} cannot be used: {error}", param="events.outbox") from error

    @property
    def name(self) -> str:
        """Of this file, among all: positions of another one mean nothing here."""
        return self._fact("name", secrets.token_hex(8))

    @property
    def secret(self) -> bytes:
        """For hashes that whoever reads the events cannot try names against."""
        return bytes.fromhex(self._fact("secret", secrets.token_hex(32)))

    def append(self, entries: Sequence[Entry]) -> None:
        """All or nothing; what is there already, by its id, is not written again. Raises sqlite3.Error, OSError."""
        rows = [(entry.id, entry.time, entry.type, entry.event) for entry in entries]
        with self._open() as database, database:
            database.executemany("INSERT OR IGNORE INTO events (id, time, type, event) VALUES (?, ?, ?, ?)", rows)

    def read(self, after: int, most: int, wish: Wish = ALL) -> list[Entry]:
        """What was written after this position, the oldest first. Raises sqlite3.Error, OSError."""
        query = f"SELECT {_COLUMNS} FROM events WHERE position > :after AND {_WISH} ORDER BY position LIMIT :most"
        with self._open() as database:
            return [_entry(row) for row in database.execute(query, {**asdict(wish), "after": after, "most": most})]

    def last(self, most: int, wish: Wish = ALL) -> list[Entry]:
        """The newest, the oldest of them first. Raises sqlite3.Error, OSError."""
        query = f"SELECT {_COLUMNS} FROM events WHERE {_WISH} ORDER BY position DESC LIMIT :most"
        with self._open() as database:
            return [_entry(row) for row in database.execute(query, {**asdict(wish), "most": most})][::-1]

    @property
    def end(self) -> int:
        """The position of the newest event that there is; 0: there is none. Raises sqlite3.Error, OSError."""
        with self._open() as database:
            return database.execute("SELECT max(position) FROM events").fetchone()[0] or 0

    def position(self, reader: str) -> int:
        """Of the last event that this reader has. Raises sqlite3.Error, OSError."""
        with self._open() as database:
            return _position(database, reader)

    def advance(self, reader: str, position: int) -> None:
        """Never back. Raises sqlite3.Error, OSError."""
        with self._open() as database, database:
            database.execute(
                "INSERT INTO readers VALUES (?1, ?2) ON CONFLICT DO UPDATE SET position = max(position, ?2)",
                (reader, position),
            )

    def waiting(self, reader: str) -> int:
        """Events that this reader does not have. Raises sqlite3.Error, OSError."""
        with self._open() as database:
            first, last = database.execute("SELECT min(position), max(position) FROM events").fetchone()
            return 0 if last is None else last - max(first - 1, _position(database, reader))

    def trim(self, before: float, max_bytes: int, reader: str | None = None) -> int:
        """Drops what is older than `before`, and the oldest while the file's pages take more than `max_bytes`. Gives
        how many of them `reader` did not have. Raises sqlite3.Error, OSError."""
        unread = 0
        with self._open() as database:
            while True:
                with database:
                    database.execute("BEGIN IMMEDIATE")
                    doomed = self._doomed(database, before, max_bytes)
                    if doomed is None:
                        break
                    if reader is not None:
                        query = "SELECT count(*) FROM events WHERE position > ? AND position <= ?"
                        had = _position(database, reader)
                        unread += database.execute(query, (had, doomed)).fetchone()[0]
                    database.execute("DELETE FROM events WHERE position <= ?", (doomed,))
                database.executescript(f"PRAGMA incremental_vacuum({_FREED_PAGES})")  # `execute` would free one page
        return unread

    @staticmethod
    def _doomed(database: sqlite3.Connection, before: float, max_bytes: int) -> int | None:
        """The position up to which events go now, a few at a time; None: nothing has to."""
        oldest = "SELECT position, time FROM events ORDER BY position LIMIT ?"
        rows = database.execute(oldest, (_TRIMMED_AT_ONCE,)).fetchall()
        if rows and _used_bytes(database) > max_bytes:
            return rows[-1][0]
        old = [position for position, time in rows if time < before]
        return old[-1] if old else None

    def erase(self, tenant: str, names: Sequence[str] | None, *, dry_run: bool) -> int:
        """The tenant's events, or those of the end users of it that events have by these names; unless they are only
        looked at, they are gone. Raises sqlite3.Error, OSError."""
        mine = "WHERE event ->> '$.data.tenant' = ?1"
        if names is not None:
            mine += " AND event ->> '$.data.user' IN (SELECT value FROM json_each(?2))"
        values = (tenant,) if names is None else (tenant, json.dumps(list(names)))
        with self._open() as database:
            with database:
                (found,) = database.execute(f"SELECT count(*) FROM events {mine}", values).fetchone()
                if not dry_run:
                    database.execute(f"DELETE FROM events {mine}", values)
            if not dry_run:
                purge(database)
        return found

    def _fact(self, name: str, value: str) -> str:
        """What is kept under the name; the value, where nothing is yet."""
        query = "SELECT value FROM facts WHERE name = ?"
        with self._open() as database, database:
            found = database.execute(query, (name,)).fetchone()
            if found is None:
                database.execute("INSERT OR IGNORE INTO facts VALUES (?, ?)", (name, value))
                found = database.execute(query, (name,)).fetchone()
            return found[0]

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        make_private(self.path)
        with closing(sqlite3.connect(self.path, timeout=BUSY_SECONDS)) as database:
            prepare(database, _SCHEMA)
            yield database


def _check_kind(path: Path) -> None:
    """Raises ConfigError where the file is another's database, OSError and sqlite3.Error where it is none."""
    if not path.exists():
        return
    with closing(sqlite3.connect(path, timeout=BUSY_SECONDS)) as database:
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if tables and not {"events", "facts", "readers"} <= tables:
        raise ConfigError(f"events.outbox: {path} is a database of something else", param="events.outbox")


def _entry(row: tuple[int, str, float, str, bytes]) -> Entry:
    position, name, time, kind, event = row
    return Entry(id=name, time=time, type=kind, event=event, position=position)


def _position(database: sqlite3.Connection, reader: str) -> int:
    found = database.execute("SELECT position FROM readers WHERE name = ?", (reader,)).fetchone()
    return 0 if found is None else found[0]


def _used_bytes(database: sqlite3.Connection) -> int:
    pages, free, size = (
        database.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
    )
    return (pages - free) * size
