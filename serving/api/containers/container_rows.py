"""What the SQLite file knows of containers; every function works within its caller's transaction."""

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import msgspec

from serving.api.containers.container import Container, ContainerFile, new_container_file_id
from serving.errors import QuotaError
from serving.settings.containers import ContainersConfig

SCHEMA = """
CREATE TABLE IF NOT EXISTS containers (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    tenant TEXT NOT NULL,
    user TEXT NOT NULL,
    name TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    last_active_at INTEGER NOT NULL,
    minutes INTEGER NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS containers_by_tenant ON containers (tenant, number);
CREATE TABLE IF NOT EXISTS container_files (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    container_id TEXT NOT NULL,
    user TEXT NOT NULL,
    name TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    source TEXT NOT NULL,
    mime_type TEXT NOT NULL,
    content TEXT NOT NULL,
    UNIQUE (container_id, name)
) STRICT;
"""
IS_LIVE = "last_active_at + 60 * minutes > :now"
_CONTAINER = ", ".join(Container.__struct_fields__)
_FILE = ", ".join(ContainerFile.__struct_fields__)

Kind = TypeVar("Kind", Container, ContainerFile)


@dataclass(frozen=True, slots=True)
class Written:
    """A file whose content is on disk, and is not listed yet."""

    name: str
    content: str
    bytes: int
    mime_type: str


@dataclass(frozen=True, slots=True)
class Change:
    """What became of files that were to be kept."""

    files: Sequence[ContainerFile] = ()
    left_out: Mapping[str, QuotaError] = field(default_factory=dict)  # by name: what there is no room for
    dropped: Sequence[str] = ()  # contents that no row names any more, or never did


@dataclass(frozen=True, slots=True)
class Room:
    """What is taken of it, and of the tenant's."""

    files: int  # that are there
    bytes: int  # of them
    tenant_bytes: int  # of all that the tenant has
    tenant_most: int
    config: ContainersConfig

    def after(self, files: int, size: int) -> "Room":
        return replace(self, files=self.files + files, bytes=self.bytes + size, tenant_bytes=self.tenant_bytes + size)

    def refusal(self, files: int, size: int) -> QuotaError | None:
        """Of a file that takes so much more; None where there is room for it."""
        most, most_bytes = self.config.files, self.config.bytes
        if files > 0 and self.files + files > most:
            told = f"a container holds {most} files, and has {self.files}"
            return QuotaError(told, code="container_files", limit=most, used=self.files)
        if size > 0 and self.bytes + size > most_bytes:
            told = f"a container holds {most_bytes} bytes, and has {self.bytes}: there is no room for {size} more"
            return QuotaError(told, code="container_bytes", limit=most_bytes, used=self.bytes)
        if size > 0 and self.tenant_bytes + size > self.tenant_most:
            told = (
                f"this tenant's files and containers may have {self.tenant_most} bytes together, and have "
                f"{self.tenant_bytes}: there is no room for {size} more; delete some"
            )
            return QuotaError(told, code="file_bytes", limit=self.tenant_most, used=self.tenant_bytes)
        return None


def insert(connection: sqlite3.Connection, tenant: str, user: str, made: Container) -> None:
    values = (tenant, user, *msgspec.structs.astuple(made))
    connection.execute(f"INSERT INTO containers (tenant, user, {_CONTAINER}) VALUES (?, ?, ?, ?, ?, ?, ?)", values)


def count_live(connection: sqlite3.Connection, tenant: str, now: float) -> int:
    query = f"SELECT COUNT(*) FROM containers WHERE tenant = :tenant AND {IS_LIVE}"
    return connection.execute(query, {"tenant": tenant, "now": now}).fetchone()[0]


def bytes_taken(connection: sqlite3.Connection, tenant: str, now: float) -> int:
    """By the files of a tenant's containers."""
    query = (
        "SELECT COALESCE(SUM(bytes), 0) FROM container_files WHERE container_id IN "
        f"(SELECT id FROM containers WHERE tenant = :tenant AND {IS_LIVE})"
    )
    return connection.execute(query, {"tenant": tenant, "now": now}).fetchone()[0]


def used(connection: sqlite3.Connection, tenant: str, container_id: str, now: float) -> Container | None:
    """The container, whose end is put off by this; None where there is no such one."""
    query = (
        "UPDATE containers SET last_active_at = max(last_active_at, CAST(:now AS INTEGER)) "
        f"WHERE tenant = :tenant AND id = :id AND {IS_LIVE} RETURNING {_CONTAINER}"
    )
    rows = connection.execute(query, {"tenant": tenant, "id": container_id, "now": now}).fetchall()
    return _read(Container, rows[0]) if rows else None


def is_there(connection: sqlite3.Connection, tenant: str, container_id: str) -> bool:
    """Whether it has a place in lists, expired or not; asking is no use of it."""
    query = "SELECT 1 FROM containers WHERE tenant = ? AND id = ?"
    return connection.execute(query, (tenant, container_id)).fetchone() is not None


def listed(connection: sqlite3.Connection, given: Mapping[str, Any], *, ascending: bool) -> list[Container]:
    """`given`: tenant, name, after, now, most."""
    order, beyond = ("ASC", ">") if ascending else ("DESC", "<")
    query = (
        f"SELECT {_CONTAINER} FROM containers WHERE tenant = :tenant AND {IS_LIVE} "
        f"AND (:name IS NULL OR name = :name) AND (:after IS NULL OR number {beyond} "
        "(SELECT number FROM containers WHERE tenant = :tenant AND id = :after)) "
        f"ORDER BY number {order} LIMIT :most"
    )
    rows = connection.execute(query, given).fetchall()
    return [_read(Container, row) for row in rows]


def files_of(connection: sqlite3.Connection, container_id: str) -> list[ContainerFile]:
    """The oldest first."""
    query = f"SELECT {_FILE} FROM container_files WHERE container_id = ? ORDER BY number"
    rows = connection.execute(query, (container_id,)).fetchall()
    return [_read(ContainerFile, row) for row in rows]


def delete(connection: sqlite3.Connection, container_id: str) -> list[str]:
    """The contents that no row names any more."""
    dropped = [file.content for file in files_of(connection, container_id)]
    connection.execute("DELETE FROM container_files WHERE container_id = ?", (container_id,))
    connection.execute("DELETE FROM containers WHERE id = ?", (container_id,))
    return dropped


def delete_file(connection: sqlite3.Connection, file_id: str) -> None:
    connection.execute("DELETE FROM container_files WHERE id = ?", (file_id,))


def change_files(
    connection: sqlite3.Connection,
    container_id: str,
    written: Sequence[Written],
    removed: Sequence[str],
    room: Room,
    *,
    user: str,
    source: str,
    now: float,
) -> Change:
    """A file that takes another's name takes its id too."""
    there = {file.name: file for file in files_of(connection, container_id)}
    dropped: list[str] = []
    for old in (there.pop(name) for name in dict.fromkeys(removed) if name in there):
        delete_file(connection, old.id)
        dropped.append(old.content)
        room = room.after(-1, -old.bytes)
    kept: list[ContainerFile] = []
    left_out: dict[str, QuotaError] = {}
    for one in written:
        old = there.get(one.name)
        more = (1, one.bytes) if old is None else (0, one.bytes - old.bytes)
        refusal = room.refusal(*more)
        if refusal is not None:
            left_out[one.name] = refusal
            dropped.append(one.content)
            continue
        room = room.after(*more)
        made = ContainerFile(
            id=new_container_file_id() if old is None else old.id,
            container_id=container_id,
            name=one.name,
            bytes=one.bytes,
            created_at=int(now),
            source=source,
            mime_type=one.mime_type,
            content=one.content,
        )
        if old is not None:
            delete_file(connection, old.id)
            dropped.append(old.content)
        values = (user, *msgspec.structs.astuple(made))
        connection.execute(f"INSERT INTO container_files (user, {_FILE}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", values)
        kept.append(made)
    return Change(kept, left_out, dropped)


def _read(kind: type[Kind], row: Sequence[Any]) -> Kind:
    """`row` has the columns `_CONTAINER` or `_FILE`: the fields, in their order."""
    return kind(**dict(zip(kind.__struct_fields__, row, strict=True)))
