"""Containers of all tenants: facts in the SQLite file of /v1/files, contents below its folder.

A file's content is written whole before the row that names it, under a name of its own, and goes after the row: what is
listed is whole, and what a kill leaves behind is named by no row (`container_purge`).
"""

import secrets
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

from serving.access import StorageConfig
from serving.api.containers import container_rows as rows
from serving.api.containers.container import ASSISTANT, USER, Container, ContainerFile, new_container_id
from serving.api.containers.container_rows import SCHEMA, Change, Room, Written
from serving.api.files.file_store import FileStore, write_durably
from serving.errors import NotFoundError, QuotaError
from serving.facts_file import on_disk
from serving.orchestrator.tools.workspace import HEAD_BYTES, media_type_of
from serving.settings.containers import ContainersConfig

AUTO = "auto"  # the name of a container that nobody has named
_NOTHING_SAID = StorageConfig()

Content = bytes | Path | BinaryIO
Files = Mapping[str, Content]  # by plain names


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerOwner:
    tenant: str
    user: str = ""  # of the tenant's; empty where the request names none
    own: StorageConfig = _NOTHING_SAID  # what the tenant's tier says


class ContainerStore:
    """A container that has expired is not there. Whatever names a container is a use of it, and puts its end off."""

    def __init__(self, files: FileStore, folder: Path, config: ContainersConfig, now: Callable[[], float]) -> None:
        """`folder` is that of `files`."""
        self.facts = files.facts
        self.config = config
        self.folder = folder / "container_contents"
        self.folder.mkdir(mode=0o700, exist_ok=True)
        with self.facts.transaction() as connection:
            for statement in SCHEMA.split(";")[:-1]:
                connection.execute(statement)
        self._files = files
        self.now = now
        files.count_also(lambda connection, tenant: rows.bytes_taken(connection, tenant, now()))

    async def create(
        self, owner: ContainerOwner, name: str, minutes: int | None = None, files: Files | None = None
    ) -> Container:
        """With copies of a client's `files`, all of them. Raises QuotaError."""
        made = self._made(new_container_id(), name, minutes)

        def work() -> Container:
            with self._written(files or {}) as written, self.facts.transaction() as connection:
                self._insert(connection, owner, made)
                self._changed(connection, owner, made.id, written, (), USER, whole=True)
            return made

        return await on_disk(work)

    async def open(self, owner: ContainerOwner, container_id: str, *, make: bool) -> list[ContainerFile]:
        """Its files, the oldest first. `make`: it is made under this id where it is not there. Raises NotFoundError,
        QuotaError."""

        def work(connection: sqlite3.Connection) -> list[ContainerFile]:
            if rows.used(connection, owner.tenant, container_id, self.now()) is None:
                if not make:
                    raise no_container(container_id)
                self._insert(connection, owner, self._made(container_id, AUTO))
            return rows.files_of(connection, container_id)

        return await self.facts.run(work)

    async def find(self, tenant: str, container_id: str, *, param: str = "container_id") -> Container:
        """Raises NotFoundError, for another tenant's too."""
        return await self.facts.run(lambda connection: self._used(connection, tenant, container_id, param))

    async def listed(
        self, tenant: str, *, name: str | None, after: str | None, limit: int, ascending: bool
    ) -> tuple[list[Container], bool]:
        """So many, and whether there are more. Raises NotFoundError for an `after` that is none of them."""
        given = {"tenant": tenant, "name": name, "after": after, "now": self.now(), "most": limit + 1}

        def read(connection: sqlite3.Connection) -> list[Container]:
            if after is not None and not rows.is_there(connection, tenant, after):
                raise no_container(after, param="after")
            return rows.listed(connection, given, ascending=ascending)

        found = await self.facts.run(read)
        return found[:limit], len(found) > limit

    async def delete(self, tenant: str, container_id: str) -> None:
        """Raises NotFoundError."""

        def work() -> None:
            with self.facts.transaction() as connection:
                self._used(connection, tenant, container_id)
                dropped = rows.delete(connection, container_id)
            self.unlink(dropped)

        await on_disk(work)

    async def files(self, tenant: str, container_id: str) -> list[ContainerFile]:
        """The oldest first. Raises NotFoundError."""
        return await self.open(ContainerOwner(tenant=tenant), container_id, make=False)

    async def find_file(self, tenant: str, container_id: str, file_id: str) -> ContainerFile:
        """Raises NotFoundError."""
        return _named(await self.files(tenant, container_id), container_id, file_id)

    async def read(self, tenant: str, container_id: str, file_id: str) -> tuple[ContainerFile, BinaryIO]:
        """The file as it is now, whatever becomes of it while it is read. Raises NotFoundError."""

        def work() -> tuple[ContainerFile, BinaryIO]:
            # Within the transaction: what replaces a content unlinks it after its own.
            with self.facts.transaction() as connection:
                self._used(connection, tenant, container_id)
                found = _named(rows.files_of(connection, container_id), container_id, file_id)
                try:
                    return found, self.path(found).open("rb")
                except FileNotFoundError:  # it is being erased
                    raise no_file(container_id, file_id) from None

        return await on_disk(work)

    async def delete_file(self, tenant: str, container_id: str, file_id: str) -> None:
        """Raises NotFoundError."""

        def work() -> None:
            with self.facts.transaction() as connection:
                self._used(connection, tenant, container_id)
                found = _named(rows.files_of(connection, container_id), container_id, file_id)
                rows.delete_file(connection, found.id)
            self.unlink([found.content])

        await on_disk(work)

    async def keep(self, owner: ContainerOwner, container_id: str, files: Files, removed: Sequence[str] = ()) -> Change:
        """A program's `files` in place of those that have their names, and without those `removed`; what finds no room
        is left out. Raises NotFoundError."""
        return await self._put(owner, container_id, files, removed, ASSISTANT, whole=False)

    async def add(self, owner: ContainerOwner, container_id: str, name: str, content: Content) -> ContainerFile:
        """A client's. Raises NotFoundError, QuotaError."""
        change = await self._put(owner, container_id, {name: content}, (), USER, whole=True)
        return change.files[0]

    def path(self, file: ContainerFile) -> Path:
        return self.folder / file.content

    def unlink(self, contents: Iterable[str]) -> None:
        for content in contents:
            (self.folder / content).unlink(missing_ok=True)

    def _used(
        self, connection: sqlite3.Connection, tenant: str, container_id: str, param: str = "container_id"
    ) -> Container:
        """Raises NotFoundError."""
        found = rows.used(connection, tenant, container_id, self.now())
        if found is None:
            raise no_container(container_id, param)
        return found

    async def _put(
        self,
        owner: ContainerOwner,
        container_id: str,
        files: Files,
        removed: Sequence[str],
        source: str,
        *,
        whole: bool,
    ) -> Change:
        def work() -> Change:  # to its end, though nobody may wait for it any more
            with self._written(files) as written, self.facts.transaction() as connection:
                self._used(connection, owner.tenant, container_id)
                change = self._changed(connection, owner, container_id, written, removed, source, whole=whole)
            self.unlink(change.dropped)
            return change

        return await on_disk(work)

    def _changed(
        self,
        connection: sqlite3.Connection,
        owner: ContainerOwner,
        container_id: str,
        written: Sequence[Written],
        removed: Sequence[str],
        source: str,
        *,
        whole: bool,
    ) -> Change:
        there = rows.files_of(connection, container_id)
        taken, most = self._files.bytes_taken(connection, owner.tenant, owner.own)
        room = Room(
            files=len(there),
            bytes=sum(file.bytes for file in there),
            tenant_bytes=taken,
            tenant_most=most,
            config=self.config,
        )
        change = rows.change_files(
            connection, container_id, written, removed, room, user=owner.user, source=source, now=self.now()
        )
        if whole and change.left_out:
            raise next(iter(change.left_out.values()))
        return change

    def _insert(self, connection: sqlite3.Connection, owner: ContainerOwner, made: Container) -> None:
        most, count = self.config.tenant_containers, rows.count_live(connection, owner.tenant, self.now())
        if count >= most:
            raise QuotaError(
                f"this tenant may have {most} containers, and has {count}: delete some, or wait until they expire",
                code="containers",
                limit=most,
                used=count,
            )
        rows.insert(connection, owner.tenant, owner.user, made)

    def _made(self, container_id: str, name: str, minutes: int | None = None) -> Container:
        now = int(self.now())
        return Container(
            id=container_id, name=name, created_at=now, last_active_at=now, minutes=minutes or self.config.minutes
        )

    @contextmanager
    def _written(self, files: Files) -> Iterator[list[Written]]:
        """On disk; not any more where the block raises."""
        written: list[Written] = []
        try:
            for name, content in files.items():
                stored = secrets.token_hex(16)
                written.append(Written(name, stored, 0, ""))  # also what a failure leaves of it is unlinked
                written[-1] = _write(self.folder, name, stored, content)
            yield written
        except BaseException:
            self.unlink(one.content for one in written)
            raise


def no_container(container_id: str, param: str = "container_id") -> NotFoundError:
    told = f"there is no container {container_id[:64]!r}: it may have expired"
    return NotFoundError(told, param=param, code="container_not_found")


def no_file(container_id: str, file_id: str, param: str = "file_id") -> NotFoundError:
    told = f"there is no file {file_id[:64]!r} in the container {container_id[:64]!r}"
    return NotFoundError(told, param=param, code="file_not_found")


def _named(files: Iterable[ContainerFile], container_id: str, file_id: str) -> ContainerFile:
    for file in files:
        if file.id == file_id:
            return file
    raise no_file(container_id, file_id)


def _write(folder: Path, name: str, stored: str, content: Content) -> Written:
    if isinstance(content, Path):
        reading = content.open("rb")
    else:
        reading = nullcontext(BytesIO(content) if isinstance(content, bytes) else content)
    with reading as file:
        head = file.read(HEAD_BYTES)
        file.seek(0)
        size = write_durably(folder / stored, iter(lambda: file.read(1 << 20), b""))
    return Written(name, stored, size, media_type_of(head))
