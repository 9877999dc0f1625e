"""Which stores there are, which files are in them, and how far each is: what is left to do is read from here.

What is deleted is first marked, and is then nobody's; whoever works on files removes its content, and then its mark. A
kill between any two steps leaves something to go on with.
"""

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from serving.errors import NotFoundError, QuotaError, RequestError
from serving.facts_file import FactsFile
from serving.orchestrator.retrieval.vector_store import Counts, FileBatch, StoreFile, VectorStore

SCHEMA = """
CREATE TABLE IF NOT EXISTS stores (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    tenant TEXT NOT NULL,
    expires_at INTEGER,
    is_gone INTEGER NOT NULL DEFAULT 0,
    store BLOB NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS stores_by_tenant ON stores (tenant, number);
CREATE TABLE IF NOT EXISTS store_files (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    store_id TEXT NOT NULL,
    file_id TEXT NOT NULL,
    tenant TEXT NOT NULL,
    batch_id TEXT,
    status TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    is_gone INTEGER NOT NULL DEFAULT 0,
    to_remove INTEGER NOT NULL DEFAULT 0,
    entry BLOB NOT NULL,
    UNIQUE (store_id, file_id)
) STRICT;
CREATE INDEX IF NOT EXISTS files_by_tenant ON store_files (tenant);
CREATE INDEX IF NOT EXISTS files_by_file ON store_files (file_id);
CREATE INDEX IF NOT EXISTS open_files ON store_files (number) WHERE status = 'in_progress' OR to_remove;
CREATE TABLE IF NOT EXISTS file_batches (id TEXT PRIMARY KEY, store_id TEXT NOT NULL, batch BLOB NOT NULL) STRICT;
"""
ACTIVE_SECONDS = 60  # a store's last activity is told to the minute: a search need not write

_stores = msgspec.msgpack.Decoder(VectorStore)
_files = msgspec.msgpack.Decoder(StoreFile)
_batches = msgspec.msgpack.Decoder(FileBatch)
_encode = msgspec.msgpack.encode


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogLimits:
    tenant_stores: int
    store_files: int
    tenant_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """A part of a list, in the order of creation."""

    limit: int = 20
    ascending: bool = False
    after: str | None = None
    before: str | None = None


@dataclass(frozen=True, slots=True)
class Task:
    """What is left to do for one file of a store."""

    file: StoreFile
    remove: bool  # its content goes; else it is to be ingested


class Catalog:
    def __init__(self, folder: Path, limits: CatalogLimits, now: Callable[[], float]) -> None:
        """Raises ConfigError where the folder cannot be used."""
        self._facts = FactsFile(folder, SCHEMA, setting="retrieval.folder")
        self._limits = limits
        self._now = now

    def close(self) -> None:
        self._facts.close()

    async def add_store(self, store: VectorStore, most: int | None = None) -> None:
        """Raises QuotaError where the tenant has as many as it may: `most`, or what the catalog has for all."""
        bound = self._limits.tenant_stores if most is None else most

        def insert(connection: sqlite3.Connection) -> None:
            query = "SELECT COUNT(*) FROM stores WHERE tenant = ? AND NOT is_gone"
            (there,) = connection.execute(query, (store.tenant,)).fetchone()
            if there >= bound:
                raise QuotaError(
                    f"this tenant may have {bound} vector stores, and has {there}: delete some",
                    code="vector_stores",
                    limit=bound,
                    used=there,
                )
            connection.execute(
                "INSERT INTO stores (id, tenant, expires_at, store) VALUES (?, ?, ?, ?)",
                (store.id, store.tenant, store.expires_at, _encode(store)),
            )

        await self._facts.run(insert)

    async def store(self, tenant: str, store_id: str) -> VectorStore:
        """Raises NotFoundError, for another tenant's store too."""
        return await self._facts.run(lambda connection: _store(connection, tenant, store_id))

    async def living_store(self, tenant: str, store_id: str) -> VectorStore:
        """One that is used, and so lives on. Raises NotFoundError; RequestError where it has expired."""

        def touch(connection: sqlite3.Connection) -> VectorStore:
            store = _store(connection, tenant, store_id)
            now = int(self._now())
            if store.is_expired(now):
                raise RequestError(
                    f"the vector store {store_id} has expired", param="vector_store_id", code="vector_store_expired"
                )
            if now >= store.last_active_at + ACTIVE_SECONDS:
                store = msgspec.structs.replace(store, last_active_at=now)
                _keep_store(connection, store)
            return store

        return await self._facts.run(touch)

    async def change_store(
        self, tenant: str, store_id: str, change: Callable[[VectorStore], VectorStore]
    ) -> VectorStore:
        def keep(connection: sqlite3.Connection) -> VectorStore:
            store = change(_store(connection, tenant, store_id))
            _keep_store(connection, store)
            return store

        return await self._facts.run(keep)

    async def stores(self, tenant: str, part: Slice) -> tuple[list[VectorStore], bool]:
        """And whether there are more."""
        rows, more = await self._facts.run(
            lambda connection: _sliced(connection, "SELECT store, number FROM stores", _STORE_PLACE, (tenant,), part)
        )
        return [_stores.decode(row) for row in rows], more

    async def summary(self, store_id: str) -> tuple[Counts, int]:
        """A store's files by their status, and bytes."""
        query = (
            "SELECT status, COUNT(*), SUM(bytes) FROM store_files WHERE store_id = ? AND NOT is_gone GROUP BY status"
        )
        rows = await self._facts.run(lambda connection: connection.execute(query, (store_id,)).fetchall())
        return {status: count for status, count, _ in rows}, sum(size for _, _, size in rows)

    async def delete_store(self, tenant: str, store_id: str) -> None:
        """Raises NotFoundError."""

        def mark(connection: sqlite3.Connection) -> None:
            _store(connection, tenant, store_id)
            connection.execute("UPDATE stores SET is_gone = 1 WHERE id = ?", (store_id,))

        await self._facts.run(mark)

    async def attach(self, files: Sequence[StoreFile], batch: FileBatch | None = None) -> list[StoreFile]:
        """All of one store, or none of them. One that is in the store already, and has not failed, stays with its new
        attributes. Raises QuotaError where they are too many."""

        def insert(connection: sqlite3.Connection) -> list[StoreFile]:
            if batch is not None:
                statement = "INSERT INTO file_batches VALUES (?, ?, ?)"
                connection.execute(statement, (batch.id, batch.store_id, _encode(batch)))
            kept = [_attached(connection, file) for file in files]
            self._check_room(connection, files[0])
            return kept

        return await self._facts.run(insert)

    async def file(self, store_id: str, file_id: str) -> StoreFile:
        """Raises NotFoundError."""

        def read(connection: sqlite3.Connection) -> StoreFile:
            query = "SELECT entry FROM store_files WHERE store_id = ? AND file_id = ? AND NOT is_gone"
            row = connection.execute(query, (store_id, file_id)).fetchone()
            if row is None:
                raise NotFoundError(
                    f"there is no file {file_id[:64]!r} in this vector store", param="file_id", code="file_not_found"
                )
            return _files.decode(row[0])

        return await self._facts.run(read)

    async def files(
        self, store_id: str, part: Slice, *, status: str | None = None, batch_id: str | None = None
    ) -> tuple[list[StoreFile], bool]:
        place = _Place("file_id", "store_files", "store_id = ?1 AND NOT is_gone")
        query = "SELECT entry, number FROM store_files"
        where = " AND (?2 IS NULL OR status = ?2) AND (?3 IS NULL OR batch_id = ?3)"
        rows, more = await self._facts.run(
            lambda connection: _sliced(connection, query, place, (store_id, status, batch_id), part, where)
        )
        return [_files.decode(row) for row in rows], more

    async def completed_files(self, store_id: str) -> list[StoreFile]:
        """What a search looks into."""
        query = "SELECT entry FROM store_files WHERE store_id = ? AND status = 'completed' AND NOT is_gone"
        rows = await self._facts.run(lambda connection: connection.execute(query, (store_id,)).fetchall())
        return [_files.decode(row) for (row,) in rows]

    async def change_file(
        self, store_id: str, file_id: str, change: Callable[[StoreFile], StoreFile], *, remove: bool = False
    ) -> StoreFile | None:
        """None where it is no longer there. `remove`: its content goes."""

        def keep(connection: sqlite3.Connection) -> StoreFile | None:
            query = "SELECT entry FROM store_files WHERE store_id = ? AND file_id = ? AND NOT is_gone"
            row = connection.execute(query, (store_id, file_id)).fetchone()
            if row is None:
                return None
            file = change(_files.decode(row[0]))
            _keep_file(connection, file, remove=remove)
            return file

        return await self._facts.run(keep)

    async def detach(self, store_id: str, file_id: str) -> None:
        statement = "UPDATE store_files SET is_gone = 1, to_remove = 1 WHERE store_id = ? AND file_id = ?"
        await self._facts.run(lambda connection: connection.execute(statement, (store_id, file_id)).close())

    async def forget_file(self, tenant: str, file_id: str) -> None:
        """In every store: the file itself goes."""
        statement = "UPDATE store_files SET is_gone = 1, to_remove = 1 WHERE tenant = ? AND file_id = ?"
        await self._facts.run(lambda connection: connection.execute(statement, (tenant, file_id)).close())

    async def batch(self, store_id: str, batch_id: str) -> tuple[FileBatch, Counts]:
        """Raises NotFoundError."""

        def read(connection: sqlite3.Connection) -> tuple[FileBatch, Counts]:
            return _batch(connection, store_id, batch_id), _batch_counts(connection, batch_id)

        return await self._facts.run(read)

    async def cancel_batch(self, store_id: str, batch_id: str) -> tuple[FileBatch, Counts]:
        """What is not yet ingested of it is not ingested. Raises NotFoundError."""

        def cancel(connection: sqlite3.Connection) -> tuple[FileBatch, Counts]:
            batch = _batch(connection, store_id, batch_id)
            query = "SELECT entry FROM store_files WHERE batch_id = ? AND status = 'in_progress' AND NOT is_gone"
            left = connection.execute(query, (batch_id,)).fetchall()
            for (row,) in left:
                file = msgspec.structs.replace(_files.decode(row), status="cancelled")
                _keep_file(connection, file, remove=True)
            if left:
                batch = msgspec.structs.replace(batch, is_cancelled=True)
                connection.execute("UPDATE file_batches SET batch = ? WHERE id = ?", (_encode(batch), batch_id))
            return batch, _batch_counts(connection, batch_id)

        return await self._facts.run(cancel)

    async def tasks(self) -> list[Task]:
        """What is left to do, the oldest first. Files of stores that are gone or have expired are to be removed."""

        def find(connection: sqlite3.Connection) -> list[Task]:
            ended = "SELECT id FROM stores WHERE is_gone OR expires_at <= ?"
            connection.execute(
                f"UPDATE store_files SET is_gone = 1, to_remove = 1 WHERE NOT is_gone AND store_id IN ({ended})",
                (int(self._now()),),
            )
            rows = connection.execute(
                "SELECT entry, to_remove FROM store_files WHERE status = 'in_progress' OR to_remove ORDER BY number"
            )
            return [Task(_files.decode(entry), bool(remove)) for entry, remove in rows]

        return await self._facts.run(find)

    async def removed(self, store_id: str, file_id: str) -> None:
        """The content of a file is gone from the index."""

        def forget(connection: sqlite3.Connection) -> None:
            where = "WHERE store_id = ? AND file_id = ? AND to_remove"
            connection.execute(f"DELETE FROM store_files {where} AND is_gone", (store_id, file_id))
            connection.execute(f"UPDATE store_files SET to_remove = 0 {where}", (store_id, file_id))

        await self._facts.run(forget)

    async def stores_to_drop(self) -> list[str]:
        """Those that are gone, and whose files are."""
        query = "SELECT id FROM stores WHERE is_gone AND id NOT IN (SELECT store_id FROM store_files)"
        return [store for (store,) in await self._facts.run(lambda connection: connection.execute(query).fetchall())]

    async def dropped(self, store_id: str) -> None:
        def forget(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM file_batches WHERE store_id = ?", (store_id,))
            connection.execute("DELETE FROM stores WHERE id = ? AND is_gone", (store_id,))

        await self._facts.run(forget)

    async def erase(self, tenant: str, dry_run: bool) -> tuple[list[str], Mapping[str, int]]:
        """The stores of a tenant, and what there is in them; unless it is only looked at nothing is known of them from
        then on. Their contents are still in the index."""

        def work(connection: sqlite3.Connection) -> tuple[list[str], Mapping[str, int]]:
            stores = [row[0] for row in connection.execute("SELECT id FROM stores WHERE tenant = ?", (tenant,))]
            query = "SELECT COUNT(*), COALESCE(SUM(bytes), 0) FROM store_files WHERE tenant = ?"
            files, size = connection.execute(query, (tenant,)).fetchone()
            for store in () if dry_run else stores:
                connection.execute("DELETE FROM store_files WHERE store_id = ?", (store,))
                connection.execute("DELETE FROM file_batches WHERE store_id = ?", (store,))
                connection.execute("DELETE FROM stores WHERE id = ?", (store,))
            return stores, {"vector_stores": len(stores), "files": files, "bytes": size}

        found = await self._facts.run(work)
        if not dry_run:
            await self._facts.purge()
        return found

    async def check_room(self, file: StoreFile) -> None:
        """Raises QuotaError where the tenant's stores hold more than they may."""
        await self._facts.run(lambda connection: self._check_room(connection, file))

    def _check_room(self, connection: sqlite3.Connection, file: StoreFile) -> None:
        query = "SELECT COUNT(*) FROM store_files WHERE store_id = ? AND NOT is_gone"
        (count,) = connection.execute(query, (file.store_id,)).fetchone()
        query = "SELECT COALESCE(SUM(bytes), 0) FROM store_files WHERE tenant = ? AND NOT is_gone"
        (taken,) = connection.execute(query, (file.tenant,)).fetchone()
        most = self._limits.store_files
        most_bytes = self._limits.tenant_bytes if file.tenant_bytes is None else file.tenant_bytes
        told = (
            f"a vector store may have {most} files, and this tenant's stores {most_bytes} bytes together; there would "
            f"be {count} of {taken}: delete some"
        )
        if count > most:
            raise QuotaError(told, param="file_id", code="vector_store_files", limit=most, used=count)
        if taken > most_bytes:
            raise QuotaError(told, param="file_id", code="vector_store_bytes", limit=most_bytes, used=taken)


@dataclass(frozen=True, slots=True)
class _Place:
    """How a list is told from others, and where in it an id stands."""

    id: str
    table: Literal["stores", "store_files"]
    where: str  # with ?1


_STORE_PLACE = _Place("id", "stores", "tenant = ?1 AND NOT is_gone")


def _sliced(
    connection: sqlite3.Connection, query: str, place: _Place, values: Sequence[Any], part: Slice, where: str = ""
) -> tuple[list[bytes], bool]:
    """Raises NotFoundError for an `after` or `before` that is not in the list."""
    after, before = f"?{len(values) + 1}", f"?{len(values) + 2}"
    at = f"(SELECT number FROM {place.table} WHERE {place.where} AND {place.id} = {{}})"
    beyond, short = (">", "<") if part.ascending else ("<", ">")
    for param, named in (("after", part.after), ("before", part.before)):
        if named is not None and connection.execute(at.format(after)[1:-1], (*values, named)).fetchone() is None:
            raise NotFoundError(f"there is no {named[:64]!r} in this list", param=param, code="item_not_found")
    backwards = part.before is not None and part.after is None
    order = "ASC" if part.ascending != backwards else "DESC"
    rows = connection.execute(
        f"{query} WHERE {place.where}{where} AND ({after} IS NULL OR number {beyond} {at.format(after)}) "
        f"AND ({before} IS NULL OR number {short} {at.format(before)}) ORDER BY number {order} LIMIT {part.limit + 1}",
        (*values, part.after, part.before),
    ).fetchall()
    found = [row[0] for row in rows[: part.limit]]
    return (found[::-1] if backwards else found), len(rows) > part.limit


def _store(connection: sqlite3.Connection, tenant: str, store_id: str) -> VectorStore:
    query = "SELECT store FROM stores WHERE tenant = ? AND id = ? AND NOT is_gone"
    row = connection.execute(query, (tenant, store_id)).fetchone()
    if row is None:
        raise NotFoundError(
            f"there is no vector store {store_id[:64]!r}", param="vector_store_id", code="vector_store_not_found"
        )
    return _stores.decode(row[0])


def _keep_store(connection: sqlite3.Connection, store: VectorStore) -> None:
    statement = "UPDATE stores SET expires_at = ?, store = ? WHERE id = ?"
    connection.execute(statement, (store.expires_at, _encode(store), store.id))


def _attached(connection: sqlite3.Connection, file: StoreFile) -> StoreFile:
    query = "SELECT entry, is_gone FROM store_files WHERE store_id = ? AND file_id = ?"
    row = connection.execute(query, (file.store_id, file.file_id)).fetchone()
    if row is not None and not row[1]:
        there = _files.decode(row[0])
        if there.status in ("in_progress", "completed"):
            file = msgspec.structs.replace(there, attributes=file.attributes, batch_id=file.batch_id)
            _keep_file(connection, file)
            return file
    connection.execute(
        "INSERT OR REPLACE INTO store_files (store_id, file_id, tenant, batch_id, status, bytes, entry) "
        "VALUES (?, ?, ?, ?, ?, ?, ?)",
        (file.store_id, file.file_id, file.tenant, file.batch_id, file.status, file.usage_bytes, _encode(file)),
    )
    return file


def _keep_file(connection: sqlite3.Connection, file: StoreFile, *, remove: bool = False) -> None:
    connection.execute(
        "UPDATE store_files SET status = ?, bytes = ?, batch_id = ?, to_remove = to_remove OR ?, entry = ? "
        "WHERE store_id = ? AND file_id = ?",
        (file.status, file.usage_bytes, file.batch_id, int(remove), _encode(file), file.store_id, file.file_id),
    )


def _batch(connection: sqlite3.Connection, store_id: str, batch_id: str) -> FileBatch:
    query = "SELECT batch FROM file_batches WHERE store_id = ? AND id = ?"
    row = connection.execute(query, (store_id, batch_id)).fetchone()
    if row is None:
        raise NotFoundError(
            f"there is no batch {batch_id[:64]!r} of this vector store", param="batch_id", code="batch_not_found"
        )
    return _batches.decode(row[0])


def _batch_counts(connection: sqlite3.Connection, batch_id: str) -> Counts:
    query = "SELECT status, COUNT(*) FROM store_files WHERE batch_id = ? AND NOT is_gone GROUP BY status"
    return dict(connection.execute(query, (batch_id,)).fetchall())
