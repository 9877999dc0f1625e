"""What is measured: the index in files of a folder, or in a database that is named."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

import asyncpg

from serving.orchestrator.retrieval.index import Index
from serving.orchestrator.retrieval.index_postgres import PostgresIndex
from serving.orchestrator.retrieval.index_sqlite import SqliteIndex


class Place(Protocol):
    def open(self, dimensions: int) -> Index: ...

    def open_exact(self, dimensions: int) -> Index:
        """One whose searches by vector are exact."""
        ...

    async def size(self) -> int:
        """Bytes on the disk."""
        ...


class FolderPlace:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open(self, dimensions: int) -> Index:
        return SqliteIndex(self._folder)

    open_exact = open

    async def size(self) -> int:
        return sum(path.stat().st_size for path in self._folder.rglob("*") if path.is_file())


class DatabasePlace:
    def __init__(self, url: str) -> None:
        self._url = url

    def open(self, dimensions: int) -> Index:
        return PostgresIndex(self._url, dimensions=dimensions)

    def open_exact(self, dimensions: int) -> Index:
        return PostgresIndex(self._url, dimensions=dimensions, exact_windows=1 << 62)

    async def size(self) -> int:
        db = await asyncpg.connect(self._url)
        query = "SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relkind = 'r' AND relname LIKE 'weft_%'"
        found = await db.fetchval(query)
        await db.close()
        return int(found or 0)


@asynccontextmanager
async def place_of(url: str | None, *stores: str) -> AsyncIterator[Place]:
    """Without these stores before and after; `url` None: in a folder of its own."""
    if url is None:
        with TemporaryDirectory() as folder:
            yield FolderPlace(Path(folder))
        return
    index = PostgresIndex(url)
    try:
        for store in stores:
            await index.drop(store)
        yield DatabasePlace(url)
        for store in stores:
            await index.drop(store)
    finally:
        await index.close()
