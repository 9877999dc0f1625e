"""Who used what: one row for each request, in SQLite.

A request only appends to a list. A thread writes what has gathered, once a second at most, in one transaction; a file
that cannot be written (a full disk, a lock) is tried again with what has gathered since. Serving never waits for it,
and never fails with it. What a crash can lose is the last second's rows; beyond MOST_PENDING rows the oldest are given
up, and counted.
"""

import logging
import math
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from serving.errors import ConfigError
from serving.facts_file import make_private, refuse_other_database
from serving.observability.logs import log_event

WRITE_EVERY_SECONDS = 1.0
MOST_PENDING = 100_000
_BUSY_SECONDS = 5.0

_SCHEMA = """
CREATE TABLE IF NOT EXISTS usage (
    time REAL NOT NULL,
    key_id TEXT NOT NULL,
    tenant TEXT NOT NULL,
    model TEXT NOT NULL,
    prompt_tokens INTEGER NOT NULL,
    cached_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    device_seconds REAL NOT NULL,
    complete INTEGER NOT NULL
) STRICT
"""
_WHERE = "WHERE time >= ? AND time < ? AND (? IS NULL OR tenant = ?)"
_INDEX = "CREATE INDEX IF NOT EXISTS usage_by_time ON usage (time)"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRow:
    """`time` is the request's end, in seconds since 1970; `device_seconds` an estimate: the time that the device spent
    per computed token in those seconds, by the tokens that it computed for this request."""

    time: float
    key_id: str
    tenant: str
    model: str
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    device_seconds: float
    complete: bool  # False: it failed, or its client left


COLUMNS = tuple(spec.name for spec in fields(UsageRow))
_INSERT = f"INSERT INTO usage ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"


class Ledger:
    """`on_failure` hears of each write that failed, `on_drop` of each row that is given up; on the writer's thread."""

    def __init__(
        self,
        path: Path,
        *,
        on_failure: Callable[[], None] = lambda: None,
        on_drop: Callable[[], None] = lambda: None,
    ) -> None:
        """Raises ConfigError where the file is no such database."""
        open_ledger(path).close()
        self.path = path
        self._on_failure = on_failure
        self._on_drop = on_drop
        self._pending: deque[UsageRow] = deque()
        self._changing = threading.Lock()  # of `_pending`; held for no longer than that takes
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="usage-ledger", daemon=True)
        self._thread.start()

    def add(self, row: UsageRow) -> None:
        with self._changing:
            self._pending.append(row)
            self._drop_oldest()
        self._wake.set()

    def close(self) -> None:
        """Writes what is left. Waits for it, a few seconds at most."""
        self._closing.set()
        self._wake.set()
        self._thread.join(timeout=2 * _BUSY_SECONDS)

    def _run(self) -> None:
        while not self._closing.is_set():
            self._wake.wait()
            self._wake.clear()
            self._write()
            self._closing.wait(WRITE_EVERY_SECONDS)
            if self._pending:
                self._wake.set()
        self._write()

    def _write(self) -> None:
        with self._changing:
            rows = list(self._pending)
            self._pending.clear()
        if not rows:
            return
        try:
            # A file that was moved away, by a rotation, is made anew.
            with closing(open_ledger(self.path)) as database, database:
                database.executemany(_INSERT, [astuple(row) for row in rows])
        except (sqlite3.Error, ConfigError) as error:
            with self._changing:
                self._pending.extendleft(reversed(rows))
                self._drop_oldest()
            self._on_failure()
            if not self._failing:
                log_event(logger, "usage not written", level=logging.ERROR, reason=str(error), rows=len(rows))
            self._failing = True
            return
        if self._failing:
            log_event(logger, "usage written again", rows=len(rows))
        self._failing = False

    def _drop_oldest(self) -> None:
        while len(self._pending) > MOST_PENDING:
            self._pending.popleft()
            self._on_drop()


def open_ledger(path: Path) -> sqlite3.Connection:
    """Raises ConfigError."""
    try:
        make_private(path)  # who asks how much is nobody else's to read
        database = sqlite3.connect(path, timeout=_BUSY_SECONDS)
        refuse_other_database(database, path, "usage", kind="usage ledger", setting="usage.ledger")
        database.execute("PRAGMA journal_mode = WAL")
        database.execute(_SCHEMA)
        database.execute(_INDEX)
    except (sqlite3.Error, OSError) as error:
        raise ConfigError(f"{path}: not a usage ledger: {error}", param="usage.ledger") from error
    return database


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageSum:
    tenant: str
    key_id: str
    model: str
    requests: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    device_seconds: float


def sum_usage(
    path: Path, *, since: float | None = None, until: float | None = None, tenant: str | None = None
) -> list[UsageSum]:
    """By tenant, key and model. Raises ConfigError."""
    groups, sums = "tenant, key_id, model", [f"sum({name})" for name in COLUMNS[4:8]]
    with closing(open_ledger(path)) as database:
        query = f"SELECT {groups}, count(*), {', '.join(sums)} FROM usage {_WHERE} GROUP BY {groups} ORDER BY {groups}"
        names = [spec.name for spec in fields(UsageSum)]
        rows = database.execute(query, _bounds(since, until, tenant))
        return [UsageSum(**dict(zip(names, values, strict=True))) for values in rows]


def read_usage(
    path: Path, *, since: float | None = None, until: float | None = None, tenant: str | None = None
) -> Iterator[UsageRow]:
    """Rows in the order of their time, `since` included and `until` not. Raises ConfigError."""
    with closing(open_ledger(path)) as database:
        query = f"SELECT {', '.join(COLUMNS)} FROM usage {_WHERE} ORDER BY time"
        for values in database.execute(query, _bounds(since, until, tenant)):
            row = dict(zip(COLUMNS, values, strict=True))
            yield UsageRow(**{**row, "complete": bool(row["complete"])})


def _bounds(since: float | None, until: float | None, tenant: str | None) -> tuple[object, ...]:
    low, high = -math.inf if since is None else since, math.inf if until is None else until
    return low, high, tenant, tenant
