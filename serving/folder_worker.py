"""Work over a folder that several processes share: the one that holds the folder's lock does it."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import BinaryIO

from serving.facts_file import lock_file

LOOK_SECONDS = 1.0  # for what another process was asked, or has left


class FolderWorker:
    def __init__(
        self, lock: Path, look: Callable[[], Awaitable[None]], working: Callable[[], Iterable[asyncio.Task[None]]]
    ) -> None:
        """`look` begins what there is to do; `working` are the tasks that it has begun and that have not ended."""
        self._lock_path = lock
        self._look = look
        self._working = working
        self._lock: BinaryIO | None = None
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """There may be something to do."""
        self._wake.set()

    async def run(self) -> None:
        """Until it is cancelled. What runs then is cancelled too, and left as it is."""
        try:
            while True:
                if self._lock is None:
                    self._lock = lock_file(self._lock_path)
                if self._lock is not None:
                    await self._look()
                try:
                    async with asyncio.timeout(LOOK_SECONDS):
                        await self._wake.wait()
                except TimeoutError:
                    continue
                self._wake.clear()
        finally:
            working = list(self._working())
            for task in working:
                task.cancel()
            await asyncio.gather(*working, return_exceptions=True)
            if self._lock is not None:
                self._lock.close()
