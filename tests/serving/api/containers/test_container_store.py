"""What a container holds is whole, bounded and its tenant's, whatever happens to the process that writes it."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from serving.access import StorageConfig
from serving.api.containers import container_rows
from serving.api.containers.container_purge import ORPHAN_SECONDS, ContainerPurge
from serving.api.containers.container_store import ContainerOwner, ContainerStore
from serving.api.containers.turn_workspace import TurnWorkspace
from serving.api.files.file_store import FileStore
from serving.config import FilesConfig
from serving.errors import NotFoundError, QuotaError
from serving.settings.containers import ContainersConfig

ADA = ContainerOwner(tenant="acme", user="ada")
BOB = ContainerOwner(tenant="acme", user="bob")
THEIRS = ContainerOwner(tenant="else")


class Shelf:
    """One process over a folder, at a date that the test sets."""

    def __init__(self, folder: Path, **limits: Any) -> None:
        self.date = 1_000_000.0
        self.folder = folder
        self.files = FileStore(FilesConfig(folder=folder, max_tenant_bytes=1000), folder, lambda: self.date)
        self.store = ContainerStore(self.files, folder, ContainersConfig(**limits), lambda: self.date)
        self.purge = ContainerPurge(self.store)

    async def container(self, owner: ContainerOwner = ADA, **files: bytes) -> str:
        made = await self.store.create(owner, "c")
        await self.store.keep(owner, made.id, files)
        return made.id

    async def held(self, container: str, tenant: str = "acme") -> dict[str, bytes]:
        found = await self.store.files(tenant, container)
        return {file.name: self.store.path(file).read_bytes() for file in found}

    def on_disk(self) -> int:
        return len(list(self.store.folder.iterdir()))


@pytest.fixture
def shelf(tmp_path: Path) -> Iterator[Shelf]:
    made = Shelf(tmp_path, minutes=20, files=3, bytes=600, tenant_containers=3)
    yield made
    made.files.facts.close()


async def test_a_rewritten_file_keeps_its_id_and_what_it_was_is_gone(shelf: Shelf) -> None:
    name = await shelf.container(a=b"1", b=b"2")
    before = {file.name: file.id for file in await shelf.store.files("acme", name)}
    change = await shelf.store.keep(ADA, name, {"a": b"one"}, removed=["b", "nobody"])
    assert [file.id for file in change.files] == [before["a"]]
    assert await shelf.held(name) == {"a": b"one"}
    assert shelf.on_disk() == 1


async def test_what_is_being_read_stays_what_it_was(shelf: Shelf) -> None:
    name = await shelf.container(a=b"before")
    (file,) = await shelf.store.files("acme", name)
    _, opened = await shelf.store.read("acme", name, file.id)
    with opened:
        await shelf.store.keep(ADA, name, {"a": b"after"})
        assert opened.read() == b"before"


async def test_a_containers_bounds_leave_out_what_does_not_fit(shelf: Shelf) -> None:
    name = await shelf.container(a=b"x" * 500)
    change = await shelf.store.keep(ADA, name, {"b": b"x" * 101, "c": b"x" * 100, "d": b"", "e": b""})
    assert await shelf.held(name) == {"a": b"x" * 500, "c": b"x" * 100, "d": b""}
    assert {file: error.code for file, error in change.left_out.items()} == {
        "b": "container_bytes",
        "e": "container_files",
    }
    assert shelf.on_disk() == 3
    assert not (await shelf.store.keep(ADA, name, {"a": b""})).left_out  # what frees room is not refused


async def test_a_tenants_files_and_containers_share_one_room(shelf: Shelf) -> None:
    await shelf.files.add("acme", "f", "assistants", [b"x" * 700])
    name = await shelf.container(a=b"x" * 300)
    assert (await shelf.store.keep(ADA, name, {"b": b"x"})).left_out["b"].code == "file_bytes"
    with pytest.raises(QuotaError, match="has 1 of 1000"):
        await shelf.files.add("acme", "g", "assistants", [b"x"])
    roomy = ContainerOwner(tenant="acme", own=StorageConfig(file_bytes=2000))
    assert not (await shelf.store.keep(roomy, name, {"b": b"x"})).left_out
    await shelf.container(THEIRS, a=b"x" * 600)  # another tenant's room is another
    shelf.date += 20 * 60
    await shelf.files.add("acme", "g", "assistants", [b"x"])  # what has expired takes none


async def test_a_client_gets_all_of_its_files_or_none(shelf: Shelf) -> None:
    with pytest.raises(QuotaError, match="holds 600 bytes"):
        await shelf.store.create(ADA, "c", files={"a": b"x" * 300, "b": b"x" * 301})
    found, _ = await shelf.store.listed("acme", name=None, after=None, limit=9, ascending=True)
    assert (found, shelf.on_disk()) == ([], 0)


async def test_a_tenant_has_so_many_containers(shelf: Shelf) -> None:
    for _ in range(3):
        await shelf.container()
    with pytest.raises(QuotaError, match="may have 3 containers, and has 3"):
        await shelf.container(BOB)
    await shelf.container(THEIRS)
    shelf.date += 20 * 60
    await shelf.container()


async def test_a_container_goes_after_so_long_without_use_and_its_bytes_with_it(shelf: Shelf) -> None:
    name, other = await shelf.container(a=b"x"), await shelf.container(b=b"y")
    shelf.date += 19 * 60
    await shelf.store.find("acme", name)
    shelf.date += 19 * 60
    assert await shelf.held(name) == {"a": b"x"}
    with pytest.raises(NotFoundError, match="may have expired"):
        await shelf.store.find("acme", other)
    assert shelf.on_disk() == 2
    await shelf.purge.apply()
    assert shelf.on_disk() == 1
    assert await shelf.held(name) == {"a": b"x"}


async def test_what_a_kill_left_behind_is_never_listed_and_goes_later(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = await shelf.container(a=b"whole")
    with monkeypatch.context() as killed:  # after the content was written, and nothing could be done about it
        killed.setattr(shelf.store, "unlink", lambda _: None)
        killed.setattr(container_rows, "change_files", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            await shelf.store.keep(ADA, name, {"a": b"half", "b": b"half"})
    assert await shelf.held(name) == {"a": b"whole"}
    assert shelf.on_disk() == 3
    await shelf.purge.apply()
    assert shelf.on_disk() == 3  # another process may be about to name them
    for path in shelf.store.folder.iterdir():
        moment = path.stat().st_mtime - ORPHAN_SECONDS - 1
        os.utime(path, (moment, moment))
    await shelf.purge.apply()
    assert shelf.on_disk() == 1
    assert await shelf.held(name) == {"a": b"whole"}


async def test_two_processes_see_each_others_files(shelf: Shelf) -> None:
    other = Shelf(shelf.folder, files=3, bytes=600)
    try:
        name = await shelf.container(a=b"1")
        await other.store.keep(ADA, name, {"b": b"2"})
        assert await shelf.held(name) == {"a": b"1", "b": b"2"} == await other.held(name)
        await other.store.delete("acme", name)
        with pytest.raises(NotFoundError):
            await shelf.store.keep(ADA, name, {"c": b"3"})
        assert shelf.on_disk() == 0
    finally:
        other.files.facts.close()


async def test_erasing_a_user_takes_her_containers_and_her_files_in_others(shelf: Shelf) -> None:
    hers, his = await shelf.container(ADA, a=b"12"), await shelf.container(BOB, b=b"3")
    await shelf.store.keep(ADA, his, {"c": b"456"})
    theirs = await shelf.container(THEIRS, d=b"7")
    assert await shelf.purge.erase("acme", "ada", dry_run=True) == {"containers": 1, "files": 2, "bytes": 5}
    assert shelf.on_disk() == 4
    await shelf.purge.erase("acme", "ada", dry_run=False)
    assert (await shelf.held(his), await shelf.held(theirs, "else")) == ({"b": b"3"}, {"d": b"7"})
    with pytest.raises(NotFoundError):
        await shelf.store.find("acme", hers)
    assert (await shelf.purge.erase("acme", None, dry_run=False))["files"] == 1
    assert shelf.on_disk() == 1


async def test_a_turns_programs_make_the_container_once_and_not_again_after_it_was_deleted(shelf: Shelf) -> None:
    workspace = TurnWorkspace(shelf.store, ADA, "cntr_new", None)
    assert (await workspace.open(), await workspace.open()) == ({}, {})
    await workspace.keep({"a": b"1"}, [])
    assert {name: path.read_bytes() for name, path in (await workspace.open()).items()} == {"a": b"1"}
    await shelf.store.delete("acme", "cntr_new")
    assert "may have expired" in (await workspace.keep({"a": b"1"}, [])).left_out["a"]
    with pytest.raises(NotFoundError):
        await workspace.open()
