"""Ingests the files that wait, and removes what was deleted. Of several processes over one folder one does: the one
that holds its lock."""

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from serving.folder_worker import FolderWorker
from serving.observability.logs import log_failure
from serving.orchestrator.retrieval.catalog import Catalog, Task
from serving.orchestrator.retrieval.index import Index
from serving.orchestrator.retrieval.ingest import FileIngest

REST_SECONDS = 5.0  # after a failure that was not foreseen

Key = tuple[str, str]  # a store's id, a file's id


class IngestRunner:
    def __init__(self, catalog: Catalog, index: Index, ingest: FileIngest, folder: Path, *, at_once: int) -> None:
        self._catalog = catalog
        self._index = index
        self._ingest = ingest
        self._at_once = at_once
        self._running: dict[Key, tuple[Task, asyncio.Task[None]]] = {}
        self._worker = FolderWorker(
            folder / "ingest.lock", self._look, lambda: (work for _, work in self._running.values())
        )

    def wake(self) -> None:
        """A file came, or is to go."""
        self._worker.wake()

    async def run(self) -> None:
        """Until it is cancelled. What runs then is left as it is."""
        await self._worker.run()

    async def _look(self) -> None:
        try:
            tasks = await self._catalog.tasks()
            for store in await self._catalog.stores_to_drop():
                await self._index.drop(store)
                await self._catalog.dropped(store)
        except Exception as error:  # a disk that fails now may not fail the next time
            log_failure(logging.getLogger(__name__), "vector stores cannot be read", error)
            return
        waiting = []
        for task in tasks:
            running = self._running.get(_key(task))
            if running is None:
                waiting.append(task)
            elif task.remove and not running[0].remove:
                running[1].cancel()
        while waiting and len(self._running) < self._at_once:
            self._begin(waiting.pop(self._next(waiting)))

    def _next(self, waiting: Sequence[Task]) -> int:
        """Removals first; then files of the tenant that has the fewest at work, the oldest first."""
        busy = Counter(task.file.tenant for task, _ in self._running.values())
        return min(range(len(waiting)), key=lambda at: (not waiting[at].remove, busy[waiting[at].file.tenant], at))

    def _begin(self, task: Task) -> None:
        self._running[_key(task)] = task, asyncio.create_task(self._run(task))

    async def _run(self, task: Task) -> None:
        file = task.file
        try:
            if task.remove:
                await self._index.remove(file.store_id, file.file_id)
                await self._catalog.removed(file.store_id, file.file_id)
            else:
                await self._ingest.run(file)
        except Exception as error:  # it is tried again at the next look
            log_failure(logging.getLogger(__name__), "a file of a vector store was interrupted", error)
            await asyncio.sleep(REST_SECONDS)
        finally:
            self._running.pop(_key(task))
            self.wake()


def _key(task: Task) -> Key:
    return task.file.store_id, task.file.file_id
