"""What ended long ago, or has expired, goes; what somebody still reads does not."""

import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from serving.api.batches.batch import Batch
from serving.api.batches.batch_store import BatchStore, reads
from serving.api.batches.retention import LOOK_SECONDS, Retention
from serving.api.containers.container_purge import ContainerPurge
from serving.api.containers.container_store import ContainerOwner, ContainerStore
from serving.api.files.file_store import FileStore
from serving.config import FilesConfig
from serving.errors import NotFoundError, OverloadedError, QuotaError
from serving.settings.containers import ContainersConfig

DAY = 86400
EXPIRY = 3600


class Kept:
    """Files and batches at a date, and a clock, that the test sets."""

    def __init__(self, folder: Path, **limits: Any) -> None:
        self.date, self.clock = 0.0, 0.0
        self.files = FileStore(FilesConfig(folder=folder, **limits), folder, lambda: self.date)
        self.store = BatchStore(self.files.facts, 100)
        self.containers = ContainerStore(self.files, folder, ContainersConfig(minutes=1), lambda: self.date)
        self.retention = self.retaining(30 * DAY)

    def retaining(self, seconds: float | None) -> Retention:
        purge = ContainerPurge(self.containers)
        return Retention(self.store, self.files, seconds, lambda: self.date, lambda: self.clock, purge)

    async def file(self, expires_seconds: int | None = EXPIRY) -> str:
        made = await self.files.add("t", "x", "batch", [b"content"], expires_seconds=expires_seconds)
        return made.id

    async def batch(self, name: str, file_id: str = "file-0") -> str:
        made = Batch(
            id=name,
            tenant="t",
            principal=b"",
            endpoint="/v1/completions",
            input_file_id=file_id,
            created_at=0,
            expires_at=DAY,
        )
        await self.store.add(made)
        return name

    async def end(self, name: str, **how: Any) -> None:
        await self.store.change(name, lambda batch: msgspec.structs.replace(batch, **how))

    async def known(self) -> set[str]:
        found, _ = await self.store.listed("t", after=None, limit=100)
        return {batch.id for batch, _ in found}

    def is_on_disk(self, file_id: str) -> bool:
        def count(connection: sqlite3.Connection) -> int:
            return connection.execute("SELECT count(*) FROM files WHERE id = ?", (file_id,)).fetchone()[0]

        with self.files.facts.transaction() as connection:
            rows = count(connection)
        assert rows == self.files.path(file_id).exists()
        return bool(rows)


@pytest.fixture
async def make_kept(tmp_path: Path) -> AsyncIterator[Callable[..., Kept]]:
    made: list[Kept] = []

    def make(**limits: Any) -> Kept:
        made.append(Kept(tmp_path / "kept", **limits))
        return made[-1]

    yield make
    for kept in made:
        kept.files.facts.close()


async def test_a_batch_is_forgotten_so_long_after_its_end_and_its_files_stay(make_kept: Callable[..., Kept]) -> None:
    kept = make_kept()
    output = await kept.file(None)
    for name, how in {
        "completed": {"status": "completed", "completed_at": 1, "output_file_id": output},
        "failed": {"status": "failed", "failed_at": 1},
        "expired": {"status": "expired", "expired_at": 1},
        "cancelled": {"status": "cancelled", "cancelled_at": 1},
        "later": {"status": "completed", "completed_at": 2},
        "expiring": {"status": "finalizing", "expired_at": 1},
    }.items():
        await kept.end(await kept.batch(name), **how)
    kept.date = 30 * DAY + 0.5
    await kept.retention.apply()
    assert await kept.known() == {"completed", "failed", "expired", "cancelled", "later", "expiring"}
    kept.date = 30 * DAY + 1
    await kept.retention.apply()
    assert await kept.known() == {"later", "expiring"}
    assert kept.is_on_disk(output)


async def test_where_batches_stay_their_age_is_nothing(make_kept: Callable[..., Kept]) -> None:
    kept = make_kept()
    await kept.end(await kept.batch("old"), status="completed", completed_at=1)
    kept.date = 36500 * DAY
    await kept.retaining(None).apply()
    assert await kept.known() == {"old"}


async def test_a_file_that_has_expired_is_gone_like_one_that_was_deleted(make_kept: Callable[..., Kept]) -> None:
    kept = make_kept(max_tenant_files=2)
    told: list[tuple[str, str]] = []

    async def forget(tenant: str, file_id: str) -> None:
        told.append((tenant, file_id))

    kept.files.before_delete(forget)
    expiring, other = await kept.file(), await kept.file(None)
    with pytest.raises(QuotaError):
        await kept.file()
    kept.date = EXPIRY - 1
    await kept.retention.apply()
    assert (await kept.files.find("t", expiring)).expires_at == EXPIRY
    kept.date = EXPIRY
    with pytest.raises(NotFoundError):
        await kept.files.find("t", expiring)
    with pytest.raises(NotFoundError):
        await kept.files.delete("t", expiring, reads)
    listed, _ = await kept.files.listed("t", purpose=None, after=None, limit=10, ascending=True)
    assert [file.id for file in listed] == [other]
    await kept.files.check_room("t")
    assert kept.is_on_disk(expiring)
    await kept.retention.apply()
    assert not kept.is_on_disk(expiring)
    assert told == [("t", expiring)]
    assert kept.is_on_disk(other)


async def test_a_file_that_a_batch_reads_goes_when_that_has_ended(make_kept: Callable[..., Kept]) -> None:
    kept = make_kept()
    file_id = await kept.file()
    await kept.batch("open", file_id)
    kept.date = EXPIRY
    await kept.retention.apply()
    assert kept.is_on_disk(file_id)
    await kept.end("open", status="completed", completed_at=EXPIRY)
    await kept.retention.apply()
    assert not kept.is_on_disk(file_id)


async def test_it_looks_once_in_a_while_also_where_the_date_leaps(make_kept: Callable[..., Kept]) -> None:
    kept = make_kept()
    retention = kept.retaining(None)
    file_id = await kept.file()
    await retention.look()
    kept.date = EXPIRY
    kept.clock = LOOK_SECONDS - 1
    await retention.look()
    assert kept.is_on_disk(file_id)
    kept.clock = LOOK_SECONDS
    await retention.look()
    assert not kept.is_on_disk(file_id)


async def test_a_disk_that_fails_ends_no_worker(make_kept: Callable[..., Kept]) -> None:
    kept = make_kept()
    with kept.files.facts.transaction() as connection:
        connection.execute("DROP TABLE batches")
    await kept.retention.look()
    with pytest.raises(OverloadedError):
        await kept.retention.apply()


async def test_what_an_earlier_version_has_kept_is_forgotten_too(
    make_kept: Callable[..., Kept], tmp_path: Path
) -> None:
    kept = make_kept()
    await kept.end(await kept.batch("old"), status="completed", completed_at=1)
    await kept.batch("open")
    file_id = await kept.file(None)
    with kept.files.facts.transaction() as connection:
        for table, column, index in (
            ("batches", "ended_at", "ended_batches"),
            ("files", "expires_at", "expiring_files"),
        ):
            connection.execute(f"DROP INDEX {index}")
            connection.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
    again = make_kept()
    assert (await again.files.find("t", file_id)).expires_at is None
    again.date = 30 * DAY + 1
    await again.retention.apply()
    assert await again.known() == {"open"}


async def test_a_container_that_nobody_uses_goes_with_its_files(make_kept: Callable[..., Kept]) -> None:
    kept = make_kept()
    owner = ContainerOwner(tenant="t")
    made = await kept.containers.create(owner, "c")
    await kept.containers.keep(owner, made.id, {"a": b"x"})
    await kept.retention.apply()
    assert len(list(kept.containers.folder.iterdir())) == 1
    kept.date += 60
    await kept.retention.apply()
    assert list(kept.containers.folder.iterdir()) == []
