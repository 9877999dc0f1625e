"""Forgets batches that ended long ago, and deletes files and containers that have expired."""

import logging
import time
from collections.abc import Callable

from serving.api.batches.batch_store import BatchStore, reads
from serving.api.containers.container_purge import ContainerPurge
from serving.api.files.file_store import FileStore
from serving.observability.logs import log_failure

LOOK_SECONDS = 60.0


class Retention:
    """`batch_seconds` are those that a batch is known after its end; None: it is not forgotten for its age. `now` is
    the date, `clock` monotonic."""

    def __init__(
        self,
        store: BatchStore,
        files: FileStore,
        batch_seconds: float | None,
        now: Callable[[], float],
        clock: Callable[[], float] = time.monotonic,
        containers: ContainerPurge | None = None,
    ) -> None:
        self._store = store
        self._files = files
        self._batch_seconds = batch_seconds
        self._now = now
        self._clock = clock
        self._containers = containers
        self._due = clock()

    async def look(self) -> None:
        """Applies itself where the last time was a while ago."""
        if self._clock() < self._due:
            return
        self._due = self._clock() + LOOK_SECONDS
        try:
            await self.apply()
        except Exception as error:  # a disk that fails now may not fail the next time
            log_failure(logging.getLogger(__name__), "what has expired cannot be forgotten", error)

    async def apply(self) -> None:
        """A file that an open batch reads goes once that has ended. Raises OverloadedError."""
        if self._batch_seconds is not None:
            await self._store.forget_ended(self._now() - self._batch_seconds)
        await self._files.delete_expired(reads)
        if self._containers is not None:
            await self._containers.apply()
