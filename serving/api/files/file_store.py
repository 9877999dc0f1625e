"""Facts in SQLite, contents below a folder, under names that the server makes: a client's file name is only a fact."""

import os
import secrets
import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from serving.access import StorageConfig
from serving.config import FilesConfig
from serving.errors import ConflictError, NotFoundError, QuotaError
from serving.facts_file import FactsFile, add_column, on_disk

SCHEMA = """
CREATE TABLE IF NOT EXISTS files (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    tenant TEXT NOT NULL,
    filename TEXT NOT NULL,
    purpose TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER
) STRICT;
CREATE INDEX IF NOT EXISTS files_by_tenant ON files (tenant, number);
"""
MADE_HERE = "batch_output"
FORGOTTEN_SECONDS = 86400.0  # after which an upload that never ended is thrown away
_NOTHING_SAID = StorageConfig()
_COLUMNS = "id, filename, purpose, bytes, created_at, expires_at"
_HAS_EXPIRED = "coalesce(expires_at <= :now, FALSE)"


class StoredFile(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    filename: str
    purpose: str
    bytes: int
    created_at: int  # seconds since 1970
    expires_at: int | None = None

    def shown(self) -> dict[str, Any]:
        facts = msgspec.to_builtins(self)
        return {**facts, "object": "file", "status": "processed", "status_details": None}


class FileStore:
    """A file that has expired is not there; its bytes are until `delete_expired`."""

    def __init__(self, config: FilesConfig, folder: Path, now: Callable[[], float] = time.time) -> None:
        """Raises ConfigError where the folder cannot be used."""
        self.facts = FactsFile(folder, SCHEMA)
        with self.facts.transaction() as connection:
            add_column(connection, "files", "expires_at", "INTEGER")
            connection.execute(
                "CREATE INDEX IF NOT EXISTS expiring_files ON files (expires_at) WHERE expires_at IS NOT NULL"
            )
        self._config = config
        self._contents = folder / "contents"
        self._contents.mkdir(mode=0o700, exist_ok=True)
        self._now = now
        self._before_delete: list[Callable[[str, str], Awaitable[None]]] = []
        self._counted_also: list[Callable[[sqlite3.Connection, str], int]] = []
        for part in self._contents.glob("*.part"):
            if part.stat().st_mtime < time.time() - FORGOTTEN_SECONDS:
                part.unlink(missing_ok=True)

    @property
    def max_file_bytes(self) -> int:
        return self._config.max_file_bytes

    def path(self, file_id: str) -> Path:
        """Of a file that was found: the id is the server's own."""
        return self._contents / file_id

    def before_delete(self, forget: Callable[[str, str], Awaitable[None]]) -> None:
        """`forget` is told a tenant and a file's id, before that file goes."""
        self._before_delete.append(forget)

    def count_also(self, bytes_of: Callable[[sqlite3.Connection, str], int]) -> None:
        """`bytes_of` tells what a tenant has beside its files in the same room."""
        self._counted_also.append(bytes_of)

    def bytes_taken(
        self, connection: sqlite3.Connection, tenant: str, own: StorageConfig = _NOTHING_SAID
    ) -> tuple[int, int]:
        """Of the tenant's room, and that room."""
        _, taken = self._taken(connection, tenant)
        return taken, self._most_bytes(own)

    async def check_room(self, tenant: str, own: StorageConfig = _NOTHING_SAID) -> None:
        """Raises QuotaError where this tenant can keep no other file; `own` is what its tier says."""
        await self.facts.run(lambda connection: self._check_room(connection, tenant, own, 1))

    async def add(
        self,
        tenant: str,
        filename: str,
        purpose: str,
        chunks: Iterable[bytes],
        own: StorageConfig = _NOTHING_SAID,
        expires_seconds: int | None = None,
    ) -> StoredFile:
        """A client's file; it expires so long after its creation. Raises QuotaError where the tenant's room does not
        hold it."""
        file_id = new_file_id()
        part = self._contents / f"{file_id}.part"
        try:
            size = await on_disk(lambda: write_durably(part, chunks))
            now = int(self._now())
            made = StoredFile(
                id=file_id,
                filename=filename,
                purpose=purpose,
                bytes=size,
                created_at=now,
                expires_at=expires_seconds and now + expires_seconds,
            )

            def keep(connection: sqlite3.Connection) -> None:
                self._check_room(connection, tenant, own, size)
                _insert(connection, tenant, made)
                os.replace(part, self.path(file_id))

            await self.facts.run(keep)
        finally:
            part.unlink(missing_ok=True)
        return made

    def put(self, connection: sqlite3.Connection, tenant: str, made: StoredFile, chunks: Iterable[bytes]) -> None:
        """A file of the server's own making, within the caller's transaction: done a second time it changes nothing.
        The tenant's room does not bound it, but counts it."""
        part = self._contents / f"{made.id}.part"
        size = write_durably(part, chunks)
        os.replace(part, self.path(made.id))
        connection.execute("DELETE FROM files WHERE id = ?", (made.id,))
        _insert(connection, tenant, msgspec.structs.replace(made, bytes=size))

    async def find(self, tenant: str, file_id: str, *, param: str = "file_id") -> StoredFile:
        """Raises NotFoundError, for another tenant's file too."""
        query = f"SELECT {_COLUMNS} FROM files WHERE tenant = :tenant AND id = :id AND NOT {_HAS_EXPIRED}"
        given = {"tenant": tenant, "id": file_id, "now": self._now()}
        row = await self.facts.run(lambda connection: connection.execute(query, given).fetchone())
        if row is None:
            raise NotFoundError(f"there is no file {file_id[:64]!r}", param=param, code="file_not_found")
        return _stored(row)

    async def listed(
        self, tenant: str, *, purpose: str | None, after: str | None, limit: int, ascending: bool
    ) -> tuple[list[StoredFile], bool]:
        """So many files, and whether there are more. Raises NotFoundError for an `after` that is none of them: who
        deletes what they list would else take the first page for all."""
        if after is not None:
            await self.find(tenant, after, param="after")
        order, beyond = ("ASC", ">") if ascending else ("DESC", "<")
        query = (
            f"SELECT {_COLUMNS} FROM files WHERE tenant = :tenant AND (:purpose IS NULL OR purpose = :purpose) "
            f"AND (:after IS NULL OR number {beyond} (SELECT number FROM files WHERE tenant = :tenant AND id = :after))"
            f" AND NOT {_HAS_EXPIRED} ORDER BY number {order} LIMIT :most"
        )
        given = {"tenant": tenant, "purpose": purpose, "after": after, "now": self._now(), "most": limit + 1}
        rows = await self.facts.run(lambda connection: connection.execute(query, given).fetchall())
        return [_stored(row) for row in rows[:limit]], len(rows) > limit

    async def delete(self, tenant: str, file_id: str, in_use: Callable[[sqlite3.Connection, str], bool]) -> None:
        """Raises NotFoundError; ConflictError where `in_use` says so."""
        await self.find(tenant, file_id)
        await self._delete(tenant, file_id, in_use)

    async def delete_expired(self, in_use: Callable[[sqlite3.Connection, str], bool]) -> None:
        """Those of all tenants, but for what `in_use` speaks of. Raises OverloadedError."""
        query = f"SELECT tenant, id FROM files WHERE expires_at IS NOT NULL AND {_HAS_EXPIRED}"

        def read(connection: sqlite3.Connection) -> list[tuple[str, str]]:
            rows = connection.execute(query, {"now": self._now()}).fetchall()
            return [(tenant, file_id) for tenant, file_id in rows if not in_use(connection, file_id)]

        for tenant, file_id in await self.facts.run(read):
            await self._delete(tenant, file_id, in_use)

    async def _delete(self, tenant: str, file_id: str, in_use: Callable[[sqlite3.Connection, str], bool]) -> None:
        def check(connection: sqlite3.Connection) -> None:
            if in_use(connection, file_id):
                raise ConflictError(
                    f"the file {file_id} is being read by a batch: cancel that first",
                    param="file_id",
                    code="file_in_use",
                )

        def drop(connection: sqlite3.Connection) -> None:
            check(connection)
            connection.execute("DELETE FROM files WHERE tenant = ? AND id = ?", (tenant, file_id))
            self.path(file_id).unlink(missing_ok=True)

        await self.facts.run(check)
        for forget in self._before_delete:
            await forget(tenant, file_id)
        await self.facts.run(drop)

    async def erase(self, tenant: str, dry_run: bool) -> Mapping[str, int]:
        """What there is of a tenant; unless it is only looked at, it is gone, but from the vector stores, which have
        parts of it. Raises OverloadedError."""

        def work(connection: sqlite3.Connection) -> Mapping[str, int]:
            rows = connection.execute("SELECT id, bytes FROM files WHERE tenant = ?", (tenant,)).fetchall()
            for file_id, _ in () if dry_run else rows:
                self.path(file_id).unlink(missing_ok=True)
                connection.execute("DELETE FROM files WHERE id = ?", (file_id,))
            return {"files": len(rows), "bytes": sum(size for _, size in rows)}

        found = await self.facts.run(work)
        if not dry_run:
            await self.facts.purge()
        return found

    def _check_room(self, connection: sqlite3.Connection, tenant: str, own: StorageConfig, size: int) -> None:
        count, taken = self._taken(connection, tenant)
        most = self._config.max_tenant_files if own.files is None else own.files
        most_bytes = self._most_bytes(own)
        told = (
            f"this tenant may keep {most} files of {most_bytes} bytes together, and has {count} of {taken}: delete some"
        )
        if count >= most:
            raise QuotaError(told, param="file", code="files", limit=most, used=count)
        if taken + size > most_bytes:
            raise QuotaError(told, param="file", code="file_bytes", limit=most_bytes, used=taken)

    def _most_bytes(self, own: StorageConfig) -> int:
        return self._config.max_tenant_bytes if own.file_bytes is None else own.file_bytes

    def _taken(self, connection: sqlite3.Connection, tenant: str) -> tuple[int, int]:
        """Files, and bytes of them and of what is counted also."""
        query = f"SELECT COUNT(*), COALESCE(SUM(bytes), 0) FROM files WHERE tenant = :tenant AND NOT {_HAS_EXPIRED}"
        count, taken = connection.execute(query, {"tenant": tenant, "now": self._now()}).fetchone()
        return count, taken + sum(bytes_of(connection, tenant) for bytes_of in self._counted_also)


def new_file_id() -> str:
    return f"file-{secrets.token_hex(16)}"


def write_durably(path: Path, chunks: Iterable[bytes]) -> int:
    """The bytes that are on the disk then."""
    with path.open("wb") as file:
        for chunk in chunks:
            file.write(chunk)
        size = file.tell()
        file.flush()
        os.fsync(file.fileno())
    return size


def _insert(connection: sqlite3.Connection, tenant: str, made: StoredFile) -> None:
    connection.execute(
        f"INSERT INTO files (tenant, {_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (tenant, made.id, made.filename, made.purpose, made.bytes, made.created_at, made.expires_at),
    )


def _stored(row: tuple[Any, ...]) -> StoredFile:
    return StoredFile(id=row[0], filename=row[1], purpose=row[2], bytes=row[3], created_at=row[4], expires_at=row[5])
