"""What a person is to look at: a table of records, each there once however often a stream is judged again."""

import asyncio
import contextlib
import hashlib
import logging
import sqlite3
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Lock
from typing import Any

from serving.errors import ConfigError, NotFoundError, OverloadedError
from serving.facts_file import add_column, make_private, on_disk, prepare, purge
from serving.observability.logs import log_event, log_failure
from serving.orchestrator.moderation.judges.judge import Direction, Finding
from serving.orchestrator.moderation.moderation_metrics import ModerationMetrics
from serving.orchestrator.moderation.review_record import (
    MOST_EXCERPT_CHARS,
    ReviewFilter,
    ReviewRecord,
    ReviewVerdict,
    Subject,
)

LOOK_SECONDS = 15.0  # between looks at what waits, for the metrics, and at what has been here for long enough
_SCHEMA = """
CREATE TABLE IF NOT EXISTS review (
    id TEXT PRIMARY KEY,
    at REAL NOT NULL,
    tenant TEXT NOT NULL,
    request_id TEXT NOT NULL,
    direction TEXT NOT NULL,
    category TEXT NOT NULL,
    score REAL NOT NULL,
    excerpt TEXT NOT NULL,
    done INTEGER NOT NULL DEFAULT 0
)"""
_LATER = {  # columns that files of earlier releases lack
    "user": "TEXT NOT NULL DEFAULT ''",
    "judge": "TEXT NOT NULL DEFAULT ''",
    "verdict": "TEXT",
    "note": "TEXT",
    "decided_at": "REAL",
    "decided_by": "TEXT",
}
_COLUMNS = (
    "id, at, tenant, user, request_id, direction, category, score, judge, excerpt, "
    "done, verdict, note, decided_at, decided_by"
)

logger = logging.getLogger(__name__)


class ReviewQueue:
    def __init__(
        self,
        path: Path,
        metrics: ModerationMetrics,
        retain_seconds: float | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`retain_seconds` None: for ever; records are retained by the date. Raises ConfigError where the database
        cannot be used."""
        self._metrics = metrics
        self._retain = retain_seconds
        self._clock = clock
        self._has_remains = False  # of records that were dropped, on the disk
        self._lock = Lock()
        try:
            make_private(path)  # it holds what users wrote
            self._database = sqlite3.connect(path, timeout=10, isolation_level=None, check_same_thread=False)
            prepare(self._database, _SCHEMA)
            _complete(self._database)
        except (sqlite3.Error, OSError) as error:
            raise ConfigError(f"moderation.review: {path} cannot be used: {error}", param="review") from error

    async def add(self, subject: Subject, place: str, direction: Direction, finding: Finding, text: str) -> bool:
        """`place` tells the findings of one request apart. A record that cannot be written is logged and counted, and
        False comes back: what it is about is not held up by it."""
        named = f"{subject.tenant}/{subject.request_id}/{direction}/{place}/{finding.category}"
        record = (
            f"rev_{hashlib.blake2b(named.encode(), digest_size=12).hexdigest()}",
            self._clock(),
            subject.tenant,
            subject.user,
            subject.request_id,
            direction,
            finding.category,
            finding.score,
            finding.judge,
            text[-MOST_EXCERPT_CHARS:],
        )
        try:
            await asyncio.to_thread(self._insert, record)
        except sqlite3.Error as error:
            self._metrics.routed.labels("lost").inc()
            log_failure(logger, "a record for review could not be written", error, request_id=subject.request_id)
            return False
        self._metrics.routed.labels("kept").inc()
        return True

    async def listed(
        self, wanted: ReviewFilter, *, after: str | None = None, limit: int = 20
    ) -> tuple[list[ReviewRecord], bool]:
        """The newest first, from behind the record `after` on, and whether there are more. Raises NotFoundError for an
        `after` that is none, OverloadedError."""
        terms, values = [term for term, _ in wanted.terms], [value for _, value in wanted.terms]
        if after is not None:
            last = await self.find(after, param="after")
            terms, values = [*terms, "(at, id) < (?, ?)"], [*values, last.at, last.id]
        where = f"WHERE {' AND '.join(terms)}" if terms else ""
        query = f"SELECT {_COLUMNS} FROM review {where} ORDER BY at DESC, id DESC LIMIT ?"
        found = [_record(row) for row in await self._rows(query, *values, limit + 1)]
        return found[:limit], len(found) > limit

    async def find(self, review_id: str, *, param: str | None = None) -> ReviewRecord:
        """Raises NotFoundError, OverloadedError."""
        rows = await self._rows(f"SELECT {_COLUMNS} FROM review WHERE id = ?", review_id)
        if not rows:
            raise NotFoundError(f"there is no review {review_id[:100]!r} here", param=param, code="review_not_found")
        return _record(rows[0])

    async def decide(self, review_id: str, verdict: ReviewVerdict, note: str | None, by: str) -> ReviewRecord:
        """`by` is the id of a key. A later verdict takes the place of an earlier one. Raises as `find`."""
        change = "UPDATE review SET done = 1, verdict = ?, note = ?, decided_at = ?, decided_by = ? WHERE id = ?"
        await self._rows(change, verdict, note, self._clock(), by, review_id)
        decided = await self.find(review_id)
        await self.count()
        return decided

    async def count(self) -> None:
        """Tells the metrics what waits, and what was decided. Raises OverloadedError."""
        query = "SELECT category, done, verdict, count(*) FROM review GROUP BY category, done, verdict"
        rows = await self._rows(query)
        self._metrics.reviews.clear()
        for category, done, verdict, records in rows:
            state = (verdict or "undecided") if done else "waiting"
            self._metrics.reviews.labels(category, state).set(records)

    async def trim(self) -> None:
        """Drops the records that are older than they are retained, from the disk too. Those that nobody looked at are
        counted and logged. Raises OverloadedError."""
        if self._retain is None:
            return
        before = self._clock() - self._retain
        gone = await self._rows("DELETE FROM review WHERE at <= ? RETURNING done", before)
        self._has_remains |= bool(gone)
        if unseen := sum(not done for (done,) in gone):
            self._metrics.routed.labels("unseen").inc(unseen)
            log_event(logger, "records for review went unseen", level=logging.WARNING, records=unseen)
        if self._has_remains:
            await on_disk(self._purge)
            self._has_remains = False

    async def run(self) -> None:
        """For ever. Other processes write into the file too, so that it is asked rather than remembered."""
        while True:
            try:
                await self.trim()
                await self.count()
            except OverloadedError as error:
                log_failure(logger, "records for review could not be counted, or dropped in time", error)
            await asyncio.sleep(LOOK_SECONDS)

    async def erase(self, tenant: str, user: str | None, dry_run: bool) -> Mapping[str, int]:
        """What there is of a tenant, or of one of its users; unless it is only looked at, it is gone. Raises
        OverloadedError."""
        where, values = "WHERE tenant = ?", [tenant]
        if user is not None:
            where, values = f"{where} AND user = ?", [tenant, user]

        def work() -> Mapping[str, int]:
            with self._lock:
                (records,) = self._database.execute(f"SELECT count(*) FROM review {where}", values).fetchone()
                if not dry_run:
                    self._database.execute(f"DELETE FROM review {where}", values)
                    purge(self._database)
            return {"records": records}

        return await on_disk(work)

    def close(self) -> None:
        with self._lock, contextlib.suppress(sqlite3.Error):
            self._database.close()

    async def _rows(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """That a statement gives, which may change some. Raises OverloadedError."""

        def work() -> list[tuple[Any, ...]]:
            with self._lock:
                return self._database.execute(statement, values).fetchall()

        return await on_disk(work)

    def _purge(self) -> None:
        with self._lock:
            purge(self._database)

    def _insert(self, record: tuple[object, ...]) -> None:
        columns = "id, at, tenant, user, request_id, direction, category, score, judge, excerpt"
        query = f"INSERT OR IGNORE INTO review ({columns}) VALUES ({', '.join('?' * len(record))})"
        with self._lock:
            self._database.execute(query, record)


def _complete(database: sqlite3.Connection) -> None:
    """A file of an earlier release gets what it lacks; several processes may open it at once."""
    database.execute("BEGIN IMMEDIATE")
    try:
        for name, kind in _LATER.items():
            add_column(database, "review", name, kind)
        database.execute("CREATE INDEX IF NOT EXISTS review_by_age ON review (at, id)")
        database.execute("CREATE INDEX IF NOT EXISTS review_by_state ON review (category, done, verdict)")
    except BaseException:
        database.execute("ROLLBACK")
        raise
    database.execute("COMMIT")


def _record(row: tuple[Any, ...]) -> ReviewRecord:
    values = dict(zip(_COLUMNS.split(", "), row, strict=True))
    return ReviewRecord(**{**values, "done": bool(values["done"])})
