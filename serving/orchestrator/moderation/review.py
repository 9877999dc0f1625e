"""What a person is to look at: a table of records, each there once however often a stream is judged again."""

import asyncio
import contextlib
import logging
import sqlite3
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from serving.errors import ConfigError
from serving.facts_file import on_disk, purge
from serving.observability.logs import log_failure
from serving.orchestrator.moderation.judges.judge import Direction, Finding
from serving.orchestrator.moderation.moderation_metrics import ModerationMetrics

MOST_EXCERPT_CHARS = 2000
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

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Subject:
    """Whose text it is."""

    tenant: str
    request_id: str  # without what a process that goes on with it adds


class ReviewQueue:
    def __init__(self, path: Path, metrics: ModerationMetrics) -> None:
        """Raises ConfigError where the database cannot be used."""
        self._metrics = metrics
        self._lock = Lock()
        try:
            self._database = sqlite3.connect(path, timeout=10, isolation_level=None, check_same_thread=False)
            self._database.execute("PRAGMA journal_mode=WAL")
            self._database.execute("PRAGMA secure_delete = ON")  # what was erased does not stay in free pages
            self._database.execute(_SCHEMA)
        except sqlite3.Error as error:
            raise ConfigError(f"moderation.review: {path} cannot be used: {error}", param="review") from error

    async def add(self, subject: Subject, place: str, direction: Direction, finding: Finding, text: str) -> None:
        """`place` tells the findings of one request apart. A record that cannot be written is logged and counted:
        what it is about is not held up by it."""
        record = (
            f"{subject.request_id}/{direction}/{place}/{finding.category}",
            time.time(),
            subject.tenant,
            subject.request_id,
            direction,
            finding.category,
            finding.score,
            text[-MOST_EXCERPT_CHARS:],
        )
        try:
            await asyncio.to_thread(self._insert, record)
        except sqlite3.Error as error:
            self._metrics.routed.labels("lost").inc()
            log_failure(logger, "a record for review could not be written", error, request_id=subject.request_id)
        else:
            self._metrics.routed.labels("kept").inc()

    async def erase(self, tenant: str, dry_run: bool) -> Mapping[str, int]:
        """What there is of a tenant; unless it is only looked at, it is gone. Raises OverloadedError."""

        def work() -> Mapping[str, int]:
            with self._lock:
                query = "SELECT count(*) FROM review WHERE tenant = ?"
                (records,) = self._database.execute(query, (tenant,)).fetchone()
                if not dry_run:
                    self._database.execute("DELETE FROM review WHERE tenant = ?", (tenant,))
                    purge(self._database)
            return {"records": records}

        return await on_disk(work)

    def close(self) -> None:
        with self._lock, contextlib.suppress(sqlite3.Error):
            self._database.close()

    def _insert(self, record: tuple[object, ...]) -> None:
        columns = "id, at, tenant, request_id, direction, category, score, excerpt"
        with self._lock:
            self._database.execute(f"INSERT OR IGNORE INTO review ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", record)
