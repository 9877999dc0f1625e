"""Conversations in Postgres: many API processes on many machines share them. Postgres's clock counts."""

from collections.abc import Callable, Sequence
from typing import Any

import asyncpg

from serving.errors import ConversationStoreError
from serving.postgres_pool import Connection, PostgresPool
from serving.sessions.conversations.quota import UNBOUNDED, Quota, Size
from serving.sessions.conversations.records import Owner
from serving.sessions.conversations.store import Edit, Key, NoTreeError, Rows

_NOW = "extract(epoch FROM clock_timestamp())::double precision"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS weft_trees (
    tree text PRIMARY KEY, tenant text NOT NULL, owner text NOT NULL, used double precision NOT NULL
);
CREATE INDEX IF NOT EXISTS weft_trees_of ON weft_trees (tenant, owner);
CREATE TABLE IF NOT EXISTS weft_rows (
    tree text NOT NULL REFERENCES weft_trees ON DELETE CASCADE,
    kind text NOT NULL, name text NOT NULL, value bytea NOT NULL, PRIMARY KEY (tree, kind, name)
);
CREATE TABLE IF NOT EXISTS weft_leases (name text PRIMARY KEY, expires double precision NOT NULL);
CREATE INDEX IF NOT EXISTS weft_leases_by_end ON weft_leases (expires);
CREATE TABLE IF NOT EXISTS weft_held (tenant text PRIMARY KEY, trees bigint NOT NULL, bytes bigint NOT NULL);
ALTER TABLE weft_trees ADD COLUMN IF NOT EXISTS items bigint, ADD COLUMN IF NOT EXISTS bytes bigint;
"""
# Of trees that a version without sizes has written.
_MEASURE = """
UPDATE weft_trees SET (items, bytes) = (
    SELECT count(*) FILTER (WHERE kind = 'item'), coalesce(sum(length(name) + length(value)), 0)
    FROM weft_rows WHERE weft_rows.tree = weft_trees.tree
) WHERE bytes IS NULL
"""
_SUM = """
INSERT INTO weft_held SELECT tenant, count(*), sum(bytes) FROM weft_trees GROUP BY tenant
ON CONFLICT (tenant) DO UPDATE SET trees = excluded.trees, bytes = excluded.bytes
"""
# The tenant's row is locked until the commit: its writers come one after the other.
_HOLD = """
INSERT INTO weft_held AS held VALUES ($1, $2, $3)
ON CONFLICT (tenant) DO UPDATE SET trees = held.trees + excluded.trees, bytes = held.bytes + excluded.bytes
RETURNING trees, bytes
"""
_FREE = """
WITH gone AS (DELETE FROM weft_trees WHERE {which} RETURNING tenant, bytes),
sums AS (SELECT tenant, count(*) AS trees, sum(bytes) AS bytes FROM gone GROUP BY tenant)
UPDATE weft_held SET trees = weft_held.trees - sums.trees, bytes = weft_held.bytes - sums.bytes
FROM sums WHERE weft_held.tenant = sums.tenant
"""
_OLD = """
SELECT count(*) FILTER (WHERE kind = 'item'), coalesce(sum(length(name) + length(value)), 0) FROM weft_rows
WHERE tree = $1 AND (kind, name) IN (SELECT * FROM unnest($2::text[], $3::text[]))
"""
_PUT = """
INSERT INTO weft_rows VALUES ($1, $2, $3, $4)
ON CONFLICT (tree, kind, name) DO UPDATE SET value = excluded.value
"""
_LEASE = f"""
INSERT INTO weft_leases SELECT name, {_NOW} + $2 FROM unnest($1::text[]) AS name
ON CONFLICT (name) DO UPDATE SET expires = excluded.expires
"""
# The time of the last look, in the place of a lease that is nobody's. Where nobody has looked for the time of a lease,
# the clock has leapt, or nobody was there: all leases begin anew, so that no living process loses what it holds.
_LOOKED = f"SELECT abs({_NOW} - expires) > $1 FROM weft_leases WHERE name = '' FOR UPDATE"
_RENEW_ALL = f"UPDATE weft_leases SET expires = {_NOW} + $1 WHERE name <> ''"
_EXPIRED = f"""
UPDATE weft_leases SET expires = {_NOW} + $1
WHERE name IN (SELECT name FROM weft_leases WHERE expires <= {_NOW} AND name <> '' FOR UPDATE SKIP LOCKED)
RETURNING name
"""


class PostgresConversationStore:
    def __init__(self, url: str, retain_seconds: float | None = None, password: str | None = None) -> None:
        """`retain_seconds` None: for ever. Nothing is connected before it is used."""
        self._retain = retain_seconds
        self._pool = PostgresPool(url, password, prepare=_make_tables, lost=_lost)

    async def create(self, tree: str, owner: Owner, rows: Rows, quota: Quota = UNBOUNDED) -> None:
        async with self._pool.transaction() as db:
            statement = f"INSERT INTO weft_trees VALUES ($1, $2, $3, {_NOW}, 0, 0)"
            await db.execute(statement, tree, owner.tenant, owner.user)
            await _write(db, tree, owner.tenant, Edit(rows), quota, trees=1)

    async def owner(self, tree: str) -> Owner | None:
        async with self._pool.transaction() as db:
            found = await db.fetchrow("SELECT tenant, owner FROM weft_trees WHERE tree = $1", tree)
        return None if found is None else Owner(*found)

    async def read(self, tree: str, kind: str, names: Sequence[str] | None = None) -> dict[str, bytes]:
        query = "SELECT name, value FROM weft_rows WHERE tree = $1 AND kind = $2"
        async with self._pool.transaction() as db:
            if names is None:
                found = await db.fetch(f'{query} ORDER BY name COLLATE "C"', tree, kind)
            else:
                found = await db.fetch(f"{query} AND name = ANY($3::text[])", tree, kind, list(names))
        return {name: bytes(value) for name, value in found}

    async def change(
        self, tree: str, keys: Sequence[Key], work: Callable[[Rows], Edit], quota: Quota = UNBOUNDED
    ) -> Any:
        async with self._pool.transaction() as db:
            # The tree's row is locked until the commit.
            statement = f"UPDATE weft_trees SET used = {_NOW} WHERE tree = $1 RETURNING tenant"
            tenant = await db.fetchval(statement, tree)
            if tenant is None:
                raise NoTreeError(tree)
            kinds, names = [kind for kind, _ in keys], [name for _, name in keys]
            found = await db.fetch(
                "SELECT kind, name, value FROM weft_rows WHERE tree = $1 "
                "AND (kind, name) IN (SELECT * FROM unnest($2::text[], $3::text[]))",
                tree,
                kinds,
                names,
            )
            edit = work({(kind, name): bytes(value) for kind, name, value in found})
            await _write(db, tree, tenant, edit, quota)
            return edit.outcome

    async def drop(self, tree: str) -> None:
        async with self._pool.transaction() as db:
            await db.execute(_FREE.format(which="tree = $1"), tree)

    async def held(self, tenant: str) -> Size:
        async with self._pool.transaction() as db:
            found = await db.fetchrow("SELECT trees, bytes FROM weft_held WHERE tenant = $1", tenant)
        return Size() if found is None else Size(trees=found["trees"], bytes=found["bytes"])

    async def trees(self, tenant: str, user: str | None = None) -> list[str]:
        query = "SELECT tree FROM weft_trees WHERE tenant = $1 AND ($2::text IS NULL OR owner = $2)"
        async with self._pool.transaction() as db:
            return sorted(row[0] for row in await db.fetch(query, tenant, user))

    async def lease(self, names: Sequence[str], seconds: float) -> None:
        async with self._pool.transaction() as db:
            await db.execute(_LEASE, sorted(names), seconds)

    async def release(self, names: Sequence[str]) -> None:
        async with self._pool.transaction() as db:
            await db.execute("DELETE FROM weft_leases WHERE name = ANY($1::text[])", list(names))

    async def expired(self, seconds: float) -> list[str]:
        async with self._pool.transaction() as db:
            leapt = await db.fetchval(_LOOKED, seconds)
            await db.execute(_LEASE, [""], 0.0)
            if leapt:
                await db.execute(_RENEW_ALL, seconds)
                return []
            return sorted(row[0] for row in await db.fetch(_EXPIRED, seconds))

    async def trim(self) -> None:
        if self._retain is None:
            return
        async with self._pool.transaction() as db:
            await db.execute(_FREE.format(which=f"used <= {_NOW} - $1"), self._retain)
            await db.execute("DELETE FROM weft_held WHERE trees = 0")

    async def purge(self) -> None:
        """Postgres takes dead rows away when it vacuums next, and keeps its own write-ahead log."""

    async def close(self) -> None:
        await self._pool.close()


def _lost() -> ConversationStoreError:
    return ConversationStoreError("the store of conversations cannot be reached")


async def _make_tables(db: asyncpg.Connection) -> None:
    await db.execute(_SCHEMA)
    if await db.execute(_MEASURE) != "UPDATE 0":
        await db.execute(_SUM)


async def _write(db: Connection, tree: str, tenant: str, edit: Edit, quota: Quota, *, trees: int = 0) -> None:
    """Raises QuotaError."""
    keys = [*edit.put, *edit.drop]
    old_items, old_bytes = await db.fetchrow(_OLD, tree, [kind for kind, _ in keys], [name for _, name in keys])
    await db.executemany(
        "DELETE FROM weft_rows WHERE tree = $1 AND kind = $2 AND name = $3", [(tree, *key) for key in edit.drop]
    )
    await db.executemany(_PUT, [(tree, *key, value) for key, value in edit.put.items()])
    growth = Size(
        trees=trees,
        items=sum(kind == "item" for kind, _ in edit.put) - old_items,
        bytes=sum(len(name) + len(value) for (_, name), value in edit.put.items()) - int(old_bytes),
    )
    grown = "UPDATE weft_trees SET items = items + $2, bytes = bytes + $3 WHERE tree = $1 RETURNING items"
    items = await db.fetchval(grown, tree, growth.items, growth.bytes)
    all_trees, all_bytes = await db.fetchrow(_HOLD, tenant, trees, growth.bytes)
    quota.check(Size(all_trees, items, all_bytes), growth)
