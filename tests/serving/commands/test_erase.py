"""What `weft erase` promises, on the bytes of the files."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from serving.cli import main
from tests.fakes.planted_data import DEPLOYMENT, Planted

PLACES = {
    "conversations.sqlite",
    "memory.sqlite",
    "files/facts.sqlite",
    "stores/facts.sqlite",
    "streams.sqlite",
    "review.sqlite",
    "events.sqlite",
}
HERS, HIS, THEIRS = "zyzzyvahers", "zyzzyvahis", "quixotry"


@pytest.fixture
async def planted(tmp_path: Path) -> AsyncIterator[Planted]:
    """Two users of acme, and another tenant, beside a server that has everything open."""
    (tmp_path / "deployment.toml").write_text(DEPLOYMENT)
    async with AsyncExitStack() as opened:
        made = Planted(tmp_path, opened)
        await made.plant("acme", "ada", HERS)
        await made.plant("else", "ada", THEIRS)
        await made.plant("acme", "bob", HIS)
        yield made


async def erase(planted: Planted, *flags: str) -> int:
    return await asyncio.to_thread(main, ["erase", str(planted.folder / "deployment.toml"), *flags])


def places(planted: Planted, word: str) -> set[str]:
    """Without what a name is followed by, of its write-ahead log."""
    return {name.removesuffix("-wal").removesuffix("-shm") for name in planted.found(word)}


async def test_of_a_tenant_no_byte_is_left_on_disk_while_a_server_has_the_files_open(
    planted: Planted, capsys: pytest.CaptureFixture[str]
) -> None:
    assert places(planted, HERS) >= PLACES
    assert len(planted.found(HERS)) > len(PLACES)  # a file's contents and a store's index beside them
    assert await erase(planted, "--tenant=acme") == 0
    assert planted.found("zyzzyva") == {}
    assert planted.found("acme") == {}
    told = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in told] == [
        "conversations",
        "memory",
        "batches",
        "vector stores",
        "containers",
        "files",
        "streams",
        "moderation review",
        "events",
    ]
    assert all(line.endswith("; erased") for line in told)
    assert "conversations: 2 conversations; erased" in told
    assert places(planted, THEIRS) >= PLACES  # another tenant's is where it was
    assert await erase(planted, "--tenant=acme") == 0
    assert "files: 0 files, 0 bytes; erased" in capsys.readouterr().out


async def test_a_dry_run_says_what_there_is_and_erases_nothing(
    planted: Planted, capsys: pytest.CaptureFixture[str]
) -> None:
    before = planted.found(HERS)
    assert await erase(planted, "--tenant=acme", "--dry-run") == 0
    told = capsys.readouterr().out
    assert "conversations: 2 conversations; not erased: only looked at" in told
    assert "memory: 40 entries, 0 switches; not erased" in told
    assert "events: 18 events" in told
    assert planted.found(HERS) == before


async def test_of_a_user_goes_what_is_known_to_be_hers_and_the_report_says_what_is_not(
    planted: Planted, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await erase(planted, "--tenant=acme", "--user=ada") == 0
    told = capsys.readouterr().out
    assert "conversations: 1 conversations; erased" in told
    assert "memory: 20 entries, 0 switches; erased" in told
    assert "events: 9 events; erased" in told
    assert "containers: 1 containers, 1 files, " in told
    assert "moderation review: 1 records; erased" in told
    for holder in ("batches", "vector stores", "files", "streams"):
        (line,) = (line for line in told.splitlines() if line.startswith(f"{holder}:"))
        assert line.endswith("; not erased: of the whole tenant: nothing here says of which user it is")
    hers = places(planted, HERS)
    assert not hers & {"conversations.sqlite", "memory.sqlite", "review.sqlite", "events.sqlite"}
    assert hers >= {"files/facts.sqlite", "streams.sqlite"}
    assert places(planted, HIS) >= PLACES


def test_places_that_are_not_there_are_not_made(tmp_path: Path) -> None:
    (tmp_path / "deployment.toml").write_text(DEPLOYMENT)
    assert main(["erase", str(tmp_path / "deployment.toml"), "--tenant=acme"]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["deployment.toml"]
