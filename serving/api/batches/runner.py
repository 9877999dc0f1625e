"""Runs the batches that are open. Of several API processes over one folder one does: the one that holds its lock."""

import asyncio
import logging

from serving.api.batches.batch_store import BatchStore
from serving.api.batches.batch_work import BatchWork
from serving.api.batches.retention import Retention
from serving.api.containers.container_purge import ContainerPurge
from serving.api.files.file_store import FileStore
from serving.api.service import Service
from serving.config import FilesConfig
from serving.folder_worker import FolderWorker
from serving.observability.logs import log_failure

MOST_AT_ONCE = 16  # batches


class BatchRunner:
    def __init__(
        self,
        service: Service,
        store: BatchStore,
        files: FileStore,
        config: FilesConfig,
        max_line_bytes: int,
        containers: ContainerPurge,
    ) -> None:
        assert config.folder is not None
        self._service = service
        self._store = store
        self._files = files
        self._config = config
        self._max_line_bytes = max_line_bytes
        self._slots = asyncio.Semaphore(config.concurrent_requests)
        self._retention = Retention(store, files, config.retain_batch_seconds, service.now, containers=containers)
        self._running: dict[str, tuple[BatchWork, asyncio.Task[None]]] = {}
        self._worker = FolderWorker(
            config.folder / "runner.lock", self._look, lambda: (task for _, task in self._running.values())
        )

    def wake(self) -> None:
        """A batch came, or is to end."""
        self._worker.wake()

    async def run(self) -> None:
        """Until it is cancelled. What runs then is left as it is."""
        await self._worker.run()

    async def _look(self) -> None:
        await self._retention.look()
        try:
            found = await self._store.open_batches()
        except Exception as error:  # a disk that fails now may not fail the next time
            log_failure(logging.getLogger(__name__), "batches cannot be read", error)
            return
        for batch in found:
            at_work = self._running.get(batch.id)
            if at_work is not None:
                if batch.status == "cancelling":
                    at_work[0].interrupt()
            elif len(self._running) < MOST_AT_ONCE:
                work = BatchWork(
                    self._service,
                    self._store,
                    self._files,
                    batch,
                    max_lines=self._config.max_batch_requests,
                    max_line_bytes=self._max_line_bytes,
                    slots=self._slots,
                    max_lines_begun=self._config.concurrent_requests,
                )
                self._running[batch.id] = work, asyncio.create_task(self._run(batch.id, work))

    async def _run(self, batch_id: str, work: BatchWork) -> None:
        try:
            await work.run()
        except Exception as error:  # it is tried again at the next look
            log_failure(logging.getLogger(__name__), "a batch was interrupted", error)
        finally:
            self._running.pop(batch_id)
