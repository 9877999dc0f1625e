"""What the index in Postgres promises beside what every index does: nothing is lost to its graph, a death leaves
nothing half done, and a database that it cannot use is said to be one."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import numpy as np
import pytest

from serving.errors import ConfigError
from serving.orchestrator.retrieval.catalog import Catalog, CatalogLimits
from serving.orchestrator.retrieval.chunks import Chunk
from serving.orchestrator.retrieval.document import Document
from serving.orchestrator.retrieval.erased_stores import erase_stores
from serving.orchestrator.retrieval.index import IndexUnavailableError
from serving.orchestrator.retrieval.index_postgres import PostgresIndex
from serving.orchestrator.retrieval.passages import EmbeddedPassage, Passage
from serving.orchestrator.retrieval.vector_store import VectorStore
from tests.fakes.postgres_server import PostgresServer

D, PASSAGES, WINDOWS = 8, 8, 60  # more windows in a file than a graph is asked for at first
TABLES = ("weft_documents", "weft_passages", f"weft_vectors_{D}")


def near(direction: int, passages: int, seed: int) -> list[EmbeddedPassage]:
    """Of many windows each, all of them near one direction."""
    vectors = np.random.default_rng(seed).standard_normal((passages, WINDOWS, D)).astype(np.float32) / 8
    vectors[..., direction] += 1
    vectors /= np.linalg.norm(vectors, axis=-1, keepdims=True)
    spans = tuple((at, at + 1) for at in range(WINDOWS))
    return [EmbeddedPassage(Passage(Chunk(0, WINDOWS, "x" * WINDOWS), spans), each) for each in vectors]


async def put(index: PostgresIndex, store: str, file: str, passages: list[EmbeddedPassage]) -> None:
    await index.put_document(store, file, Document("x" * WINDOWS))
    await index.add(store, file, 0, passages)


@pytest.fixture
async def db(postgres_server: PostgresServer) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(postgres_server.url)
    yield connection
    await connection.close()


@pytest.fixture
async def index(postgres_server: PostgresServer) -> AsyncIterator[PostgresIndex]:
    made = PostgresIndex(postgres_server.url, dimensions=D)
    yield made
    for store in ("vs_a", "vs_b"):
        await made.drop(store)
    await made.close()


@pytest.fixture
async def empty_database(
    db: asyncpg.Connection, postgres_server: PostgresServer, request: pytest.FixtureRequest
) -> AsyncIterator[str]:
    """The URL of one that nothing was done to."""
    options = getattr(request, "param", "")
    await db.execute(f"CREATE DATABASE weft_empty TEMPLATE template0 {options}")
    yield postgres_server.url_of("weft_empty")
    await db.execute("DROP DATABASE weft_empty WITH (FORCE)")


async def test_a_search_through_the_graph_finds_what_an_exact_one_does_and_loses_nothing_to_a_filter(
    index: PostgresIndex, postgres_server: PostgresServer
) -> None:
    await put(index, "vs_a", "near", near(0, PASSAGES, seed=1))
    await put(index, "vs_a", "far", near(1, PASSAGES, seed=2))
    await put(index, "vs_b", "near", near(0, 4, seed=3))
    # The graph is taken even where it is small, and is left when it has seen this many vectors.
    graph = f"{postgres_server.url}&enable_sort=off&enable_bitmapscan=off&hnsw.max_scan_tuples="
    query = near(0, 1, seed=4)[0].vectors[0]
    for most, files in ((20_000, ["near", "far"]), (20_000, ["far"]), (1, ["far"])):
        through = PostgresIndex(f"{graph}{most}", dimensions=D, exact_windows=0)
        found = await through.by_vector("vs_a", query, files, 6)
        assert found == await index.by_vector("vs_a", query, files, 6)
        assert {held.file_id for held in await index.passages("vs_a", found)} == {files[0]}
        assert len(await through.by_vector("vs_a", query, files, 40)) == PASSAGES * len(files)
        await through.close()


async def test_an_add_that_is_cut_off_leaves_nothing_and_can_be_done_again(
    index: PostgresIndex, db: asyncpg.Connection
) -> None:
    first, second, third = near(0, 3, seed=1)
    await put(index, "vs_a", "f", [first])
    blocked = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%weft_documents%'"
    async with db.transaction():
        await db.execute("SELECT FROM weft_documents WHERE store = 'vs_a' FOR UPDATE")
        adding = asyncio.create_task(index.add("vs_a", "f", 1, [second, third]))
        while (found := await db.fetchval(blocked)) is None:
            assert not adding.done(), "it did not wait for the lock"
            await db.execute("SELECT pg_stat_clear_snapshot()")  # a transaction sees who is there once, and keeps that
        await db.execute("SELECT pg_terminate_backend($1)", found)
        with pytest.raises(IndexUnavailableError):
            await adding
    assert await index.count("vs_a", "f") == 1
    await index.add("vs_a", "f", 1, [second, third])
    assert len(await index.by_vector("vs_a", second.vectors[0], ["f"], 9)) == await index.count("vs_a", "f") == 3
    with pytest.raises(IndexUnavailableError):
        await index.add("vs_a", "f", 1, [second])  # by one who does not know of it
    assert await index.count("vs_a", "f") == 3


async def test_a_passage_of_more_words_than_a_row_of_words_holds_is_kept_and_found_by_its_first(
    index: PostgresIndex,
) -> None:
    text = " ".join(f"{number:x}" for number in range(1 << 18, 1 << 19))
    passage = EmbeddedPassage(Passage(Chunk(0, len(text), text), ((0, len(text)),)), np.eye(1, D, dtype=np.float32))
    await put(index, "vs_a", "f", [passage])
    (held,) = await index.passages("vs_a", await index.by_words("vs_a", "40000", ["f"], 9))
    assert held.embedded.passage.chunk.text == text


async def test_of_what_was_erased_no_row_is_left_and_what_is_others_stays(
    index: PostgresIndex, db: asyncpg.Connection, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    catalog = Catalog(tmp_path, CatalogLimits(tenant_stores=9, store_files=9, tenant_bytes=9), time.time)
    store = VectorStore(id="vs_a", tenant="acme", encoder="e", created_at=0, last_active_at=0)
    await catalog.add_store(store)
    before = [await db.fetchval(f"SELECT count(*) FROM {table}") for table in TABLES]
    for file in ("f", "g"):
        await put(index, "vs_a", file, near(0, 2, seed=1))
    await put(index, "vs_b", "f", near(0, 1, seed=1))
    eraser = PostgresIndex(postgres_server.url)  # as `weft erase` opens it, which knows no encoder
    await erase_stores(catalog, eraser, "acme", dry_run=False)
    await eraser.close()
    catalog.close()
    rows = [await db.fetchval(f"SELECT count(*) FROM {table}") for table in TABLES]
    assert [now - then for now, then in zip(rows, before, strict=True)] == [1, 1, WINDOWS]
    assert len(await index.by_vector("vs_b", near(0, 1, seed=1)[0].vectors[0], ["f"], 9)) == 1


async def test_processes_that_start_at_once_make_the_tables_once(empty_database: str) -> None:
    await asyncio.gather(*(PostgresIndex(empty_database, dimensions=D).check() for _ in range(4)))
    index = PostgresIndex(empty_database, dimensions=D)
    await put(index, "vs_a", "f", near(0, 1, seed=1))
    assert len(await index.by_words("vs_a", "x" * WINDOWS, ["f"], 9)) == 1
    await index.close()


async def test_a_missing_extension_or_an_old_one_is_told_with_what_to_install(
    empty_database: str, postgres_server: PostgresServer
) -> None:
    control = postgres_server.extensions / "vector.control"
    aside = control.rename(control.with_suffix(".aside"))
    try:
        with pytest.raises(ConfigError, match=r"retrieval\.url: .*install pgvector 0\.8 or newer"):
            await PostgresIndex(empty_database, dimensions=D).check()
    finally:
        aside.rename(control)
    late = PostgresIndex(empty_database, dimensions=D)
    db = await asyncpg.connect(empty_database)
    await db.execute("CREATE ROLE weft_plain LOGIN; GRANT ALL ON SCHEMA public TO weft_plain")
    with pytest.raises(ConfigError, match="have a superuser run CREATE EXTENSION vector"):
        await PostgresIndex(postgres_server.url_of("weft_empty", "weft_plain"), dimensions=D).check()
    await db.execute("CREATE EXTENSION vector; UPDATE pg_extension SET extversion = '0.7.4' WHERE extname = 'vector'")
    with pytest.raises(ConfigError, match=r"is 0\.7\.4: install pgvector 0\.8 or newer"):
        await PostgresIndex(empty_database, dimensions=D).check()
    with pytest.raises(IndexUnavailableError, match=r"is 0\.7\.4"):  # a request does not fail for good
        await late.count("vs_a", "f")
    await db.execute("UPDATE pg_extension SET extversion = '0.10.0' WHERE extname = 'vector'")
    assert await late.count("vs_a", "f") == 0
    await late.close()
    await db.execute("DROP OWNED BY weft_plain; DROP ROLE weft_plain")
    await db.close()


@pytest.mark.parametrize("empty_database", ["ENCODING SQL_ASCII"], indirect=True)
async def test_a_database_of_another_encoding_is_refused(empty_database: str) -> None:
    with pytest.raises(ConfigError, match="encoding is SQL_ASCII"):
        await PostgresIndex(empty_database, dimensions=D).check()


async def test_a_database_that_is_away_is_unavailable_and_vectors_too_long_are_refused(tmp_path: Path) -> None:
    away = PostgresIndex(f"postgresql://postgres@/postgres?host={tmp_path}", dimensions=D)
    for ask in (away.check, lambda: away.count("vs_a", "f")):
        with pytest.raises(IndexUnavailableError, match="cannot be reached"):
            await ask()
    with pytest.raises(ConfigError, match="2000 dimensions at most"):
        PostgresIndex("postgresql://db", dimensions=2001)
