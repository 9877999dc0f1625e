"""Batches and the results of their lines, in the SQLite file of the files."""

import sqlite3
from collections.abc import Callable, Iterator, Mapping

import msgspec

from serving.api.batches.batch import Batch
from serving.errors import NotFoundError, RateLimitedError
from serving.facts_file import FactsFile, add_column

SCHEMA = """
CREATE TABLE IF NOT EXISTS batches (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    tenant TEXT NOT NULL,
    input_file_id TEXT NOT NULL,
    is_open INTEGER NOT NULL,
    batch BLOB NOT NULL,
    ended_at INTEGER
) STRICT;
CREATE INDEX IF NOT EXISTS batches_by_tenant ON batches (tenant, number);
CREATE INDEX IF NOT EXISTS open_batches ON batches (number) WHERE is_open;
CREATE TABLE IF NOT EXISTS results (
    batch_id TEXT NOT NULL,
    line INTEGER NOT NULL,
    good INTEGER NOT NULL,
    record BLOB NOT NULL,
    PRIMARY KEY (batch_id, line)
) STRICT, WITHOUT ROWID;
"""
MOST_KEPT = 1000
TRY_AGAIN_SECONDS = 60.0


class BatchGoneError(Exception):
    """It was erased while it ran."""


Counts = tuple[int, int]  # lines that are completed, and that have failed
_decoder = msgspec.msgpack.Decoder(Batch)


class BatchStore:
    def __init__(self, facts: FactsFile, max_open: int, *, most_kept: int = MOST_KEPT) -> None:
        """Of each tenant: those that have not ended, and those that are known; the oldest go."""
        self._most_kept = most_kept
        self.facts = facts
        self._max_open = max_open
        with facts.transaction() as connection:
            for statement in SCHEMA.split(";"):
                connection.execute(statement)
            if add_column(connection, "batches", "ended_at", "INTEGER"):
                _note_ends(connection)
            connection.execute(
                "CREATE INDEX IF NOT EXISTS ended_batches ON batches (ended_at) WHERE ended_at IS NOT NULL"
            )

    async def add(self, batch: Batch) -> None:
        """Raises RateLimitedError where the tenant has as many open batches as it may."""

        def insert(connection: sqlite3.Connection) -> None:
            query = "SELECT COUNT(*) FROM batches WHERE tenant = ? AND is_open"
            (open_now,) = connection.execute(query, (batch.tenant,)).fetchone()
            if open_now >= self._max_open:
                raise RateLimitedError(
                    f"this tenant has {open_now} batches that have not ended, as many as it may",
                    retry_after=TRY_AGAIN_SECONDS,
                    code="open_batches",
                )
            connection.execute(
                "DELETE FROM batches WHERE tenant = ?1 AND NOT is_open AND number <= (SELECT number FROM batches "
                "WHERE tenant = ?1 ORDER BY number DESC LIMIT 1 OFFSET ?2)",
                (batch.tenant, self._most_kept - 1),
            )
            connection.execute(
                "INSERT INTO batches (id, tenant, input_file_id, is_open, batch) VALUES (?, ?, ?, 1, ?)",
                (batch.id, batch.tenant, batch.input_file_id, msgspec.msgpack.encode(batch)),
            )

        await self.facts.run(insert)

    async def find(self, tenant: str, batch_id: str, *, param: str = "batch_id") -> tuple[Batch, Counts]:
        """Raises NotFoundError, for another tenant's batch too."""

        def read(connection: sqlite3.Connection) -> tuple[Batch, Counts] | None:
            query = "SELECT batch FROM batches WHERE tenant = ? AND id = ?"
            row = connection.execute(query, (tenant, batch_id)).fetchone()
            return None if row is None else _with_counts(connection, _decoder.decode(row[0]))

        found = await self.facts.run(read)
        if found is None:
            raise NotFoundError(f"there is no batch {batch_id[:64]!r}", param=param, code="batch_not_found")
        return found

    async def listed(self, tenant: str, *, after: str | None, limit: int) -> tuple[list[tuple[Batch, Counts]], bool]:
        """So many batches, the newest first, and whether there are more. Raises NotFoundError for an `after` that is
        none of them."""
        if after is not None:
            await self.find(tenant, after, param="after")
        query = (
            "SELECT batch FROM batches WHERE tenant = ?1 AND (?2 IS NULL OR number < "
            "(SELECT number FROM batches WHERE tenant = ?1 AND id = ?2)) ORDER BY number DESC LIMIT ?3"
        )

        def read(connection: sqlite3.Connection) -> tuple[list[tuple[Batch, Counts]], bool]:
            rows = connection.execute(query, (tenant, after, limit + 1)).fetchall()
            return [_with_counts(connection, _decoder.decode(row[0])) for row in rows[:limit]], len(rows) > limit

        return await self.facts.run(read)

    async def change(self, batch_id: str, change: Callable[[Batch], Batch]) -> Batch:
        """The batch, after `change` was made to what it was."""

        def update(connection: sqlite3.Connection) -> Batch:
            return self.changed(connection, batch_id, change)

        return await self.facts.run(update)

    def changed(self, connection: sqlite3.Connection, batch_id: str, change: Callable[[Batch], Batch]) -> Batch:
        """Raises BatchGoneError."""
        row = connection.execute("SELECT batch FROM batches WHERE id = ?", (batch_id,)).fetchone()
        if row is None:
            raise BatchGoneError(batch_id)
        batch = change(_decoder.decode(row[0]))
        connection.execute(
            "UPDATE batches SET is_open = ?, ended_at = ?, batch = ? WHERE id = ?",
            (int(batch.is_open), batch.ended_at, msgspec.msgpack.encode(batch), batch_id),
        )
        return batch

    async def forget_ended(self, before: float) -> None:
        """Those that ended by then, of all tenants; their files stay. Raises OverloadedError."""
        statement = "DELETE FROM batches WHERE ended_at IS NOT NULL AND ended_at <= ?"
        await self.facts.run(lambda connection: connection.execute(statement, (before,)).close())

    async def erase(self, tenant: str, dry_run: bool) -> Mapping[str, int]:
        """What there is of a tenant, but the files; unless it is only looked at, it is gone. Raises OverloadedError."""

        def work(connection: sqlite3.Connection) -> Mapping[str, int]:
            ids = "SELECT id FROM batches WHERE tenant = ?"
            (batches,) = connection.execute(f"SELECT count(*) FROM ({ids})", (tenant,)).fetchone()
            query = f"SELECT count(*) FROM results WHERE batch_id IN ({ids})"
            (lines,) = connection.execute(query, (tenant,)).fetchone()
            if not dry_run:
                connection.execute(f"DELETE FROM results WHERE batch_id IN ({ids})", (tenant,))
                connection.execute("DELETE FROM batches WHERE tenant = ?", (tenant,))
            return {"batches": batches, "lines": lines}

        found = await self.facts.run(work)
        if not dry_run:
            await self.facts.purge()
        return found

    async def open_batches(self) -> list[Batch]:
        """The oldest first."""
        query = "SELECT batch FROM batches WHERE is_open ORDER BY number"
        rows = await self.facts.run(lambda connection: connection.execute(query).fetchall())
        return [_decoder.decode(row[0]) for row in rows]

    async def record(self, batch_id: str, line: int, record: bytes, *, good: bool) -> None:
        """A line is done with this. Raises BatchGoneError."""
        statement = "INSERT OR IGNORE INTO results (batch_id, line, good, record) VALUES (?, ?, ?, ?)"

        def insert(connection: sqlite3.Connection) -> None:
            if connection.execute("SELECT 1 FROM batches WHERE id = ?", (batch_id,)).fetchone() is None:
                raise BatchGoneError(batch_id)
            connection.execute(statement, (batch_id, line, int(good), record))

        await self.facts.run(insert)

    async def lines_done(self, batch_id: str) -> set[int]:
        query = "SELECT line FROM results WHERE batch_id = ?"
        rows = await self.facts.run(lambda connection: connection.execute(query, (batch_id,)).fetchall())
        return {line for (line,) in rows}


def results(connection: sqlite3.Connection, batch_id: str, *, good: bool) -> Iterator[bytes]:
    """Lines of a result file, in the order of the input."""
    query = "SELECT record FROM results WHERE batch_id = ? AND good = ? ORDER BY line"
    for (record,) in connection.execute(query, (batch_id, int(good))):
        yield record + b"\n"


def forget_results(connection: sqlite3.Connection, batch_id: str) -> None:
    connection.execute("DELETE FROM results WHERE batch_id = ?", (batch_id,))


def reads(connection: sqlite3.Connection, file_id: str) -> bool:
    """Whether an open batch reads this file."""
    query = "SELECT 1 FROM batches WHERE is_open AND input_file_id = ?"
    return connection.execute(query, (file_id,)).fetchone() is not None


def counted(connection: sqlite3.Connection, batch_id: str) -> Counts:
    query = "SELECT COALESCE(SUM(good), 0), COUNT(*) FROM results WHERE batch_id = ?"
    good, every = connection.execute(query, (batch_id,)).fetchone()
    return good, every - good


def _note_ends(connection: sqlite3.Connection) -> None:
    """Of batches that a version before this one has kept."""
    for batch_id, data in connection.execute("SELECT id, batch FROM batches WHERE NOT is_open").fetchall():
        ended_at = _decoder.decode(data).ended_at
        connection.execute("UPDATE batches SET ended_at = ? WHERE id = ?", (ended_at, batch_id))


def _with_counts(connection: sqlite3.Connection, batch: Batch) -> tuple[Batch, Counts]:
    return batch, counted(connection, batch.id) if batch.is_open else (batch.completed, batch.failed)
