"""The file behind memories: what it gives back, and files of earlier releases."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from serving.errors import ConversationStoreError
from serving.orchestrator.memory.entries import Exchange, Person
from serving.orchestrator.memory.store import MemoryStore

ANN = Person("acme", "ann")
# As an earlier release made it: without auto_vacuum, so that free pages stay.
OF_BEFORE = """
PRAGMA journal_mode = WAL;
CREATE TABLE entries (
    id INTEGER PRIMARY KEY AUTOINCREMENT, tenant TEXT NOT NULL, user TEXT NOT NULL, level INTEGER NOT NULL,
    text TEXT NOT NULL, digest TEXT NOT NULL, created REAL NOT NULL
);
CREATE INDEX entries_of ON entries (tenant, user, level, id);
CREATE VIRTUAL TABLE words USING fts5 (text, tokenize = 'porter unicode61');
CREATE TABLE switches (
    tenant TEXT NOT NULL, user TEXT NOT NULL, is_on INTEGER NOT NULL, PRIMARY KEY (tenant, user)
);
INSERT INTO entries VALUES (1, 'acme', 'ann', 0, 'User: my cat is called Tom', 'd', 5.0);
INSERT INTO words (rowid, text) VALUES (1, 'User: my cat is called Tom');
INSERT INTO switches VALUES ('acme', 'ann', 1);
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "memory.sqlite"


@pytest.fixture
def store(path: Path) -> Iterator[MemoryStore]:
    made = MemoryStore(path)
    yield made
    made.close()


async def test_a_full_disk_is_what_the_log_says_and_the_client_reads_no_words_of_sqlite(
    store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    store._db.execute("PRAGMA max_page_count = 1")
    with pytest.raises(ConversationStoreError, match=r"^the memory cannot be used now$"):
        await store.add(ANN, Exchange("plum " * 100_000, "Noted."), 100, await store.life(ANN))
    assert [vars(record)["fields"] for record in caplog.records] == [{"why": "SQLITE_FULL"}]
    store._db.execute("PRAGMA max_page_count = 10000")
    await store.add(ANN, Exchange("plum", "Noted."), 100, await store.life(ANN))


async def test_what_is_forgotten_gives_its_room_back_and_leaves_nothing_on_the_disk(
    store: MemoryStore, path: Path
) -> None:
    for number in range(40):
        await store.add(ANN, Exchange(f"plum {number} " * 400, "Noted."), 100, await store.life(ANN))
    (first, *_) = await store.entries(ANN)
    assert await store.forget(ANN, first.id) == 1
    assert b"plum 0 " not in _bytes(path)
    full = path.stat().st_size
    assert await store.forget(ANN) == 39
    assert path.stat().st_size < full / 2
    assert b"plum" not in _bytes(path)
    assert await store.forget(ANN) == 0


async def test_a_file_of_an_earlier_release_keeps_its_entries_and_forgets_them(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.executescript(OF_BEFORE)
    opened = MemoryStore(path)
    await opened.add(ANN, Exchange("my dog is called Rex", "Noted."), 100, await opened.life(ANN))
    old, new = await opened.entries(ANN)
    assert (old.text, old.created, new.level) == ("User: my cat is called Tom", 5.0, 0)
    assert [entry.id for entry in await opened.relevant(ANN, "what is my cat called", 1, ())] == [old.id]
    assert await opened.is_on(ANN)
    assert await opened.forget(ANN) == 2
    opened.close()
    assert b"Tom" not in _bytes(path)


def _bytes(path: Path) -> bytes:
    return b"".join(file.read_bytes() for file in path.parent.iterdir())
