"""A generation that runs in this process, and those who read it. It does not wait for them."""

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager

from serving.errors import StreamCancelledError, WeftError
from serving.sessions.logged_generation import Admitted


class LiveGeneration:
    """`records` are what readers may see, `backlog` what is not written yet; nothing follows once it is `complete`.
    `undurable` is the code of the log's failure while it misses records."""

    def __init__(self, admitted: Admitted, records: Sequence[bytes] = ()) -> None:
        self.admitted = admitted
        self.records = list(records)
        self.backlog: list[bytes] = []
        self.complete = False
        self.added = asyncio.Event()
        self.ended_at: float | None = None  # by the monotonic clock
        self.parted = False  # this process will not go on with it
        self.undurable: str | None = None
        self.writing = asyncio.Lock()
        self.task: asyncio.Task[None] | None = None
        self.stop_reason: WeftError | None = None
        self.reads_elsewhere = 0
        self._changed = asyncio.Event()
        self._readers = 0
        self._grace: asyncio.TimerHandle | None = None

    @property
    def ended(self) -> bool:
        """The last record is there."""
        return self.ended_at is not None

    @property
    def stream_id(self) -> str:
        return self.admitted.stream_id

    def add(self, record: bytes, *, ended: bool = False) -> None:
        """For the writer."""
        self.backlog.append(record)
        self.complete = ended
        self.added.set()

    def publish(self, records: Sequence[bytes], *, ended: bool) -> None:
        self.records += records
        if ended:
            self.ended_at = time.monotonic()
            self._stop_grace()
        self._wake_readers()

    def part(self) -> None:
        """Stops without an end; readers are woken to look elsewhere."""
        self.parted = True
        self._stop_grace()
        self.added.set()
        if self.task is not None:
            self.task.cancel()
        self._wake_readers()

    def stop(self, reason: WeftError) -> None:
        """Ends it, with `reason` as its failure. After the end it does nothing."""
        if self.ended or self.stop_reason is not None:
            return
        self.stop_reason = reason
        if self.task is not None:
            self.task.cancel()

    @contextmanager
    def reading(self) -> Iterator[None]:
        self._readers += 1
        self._stop_grace()
        try:
            yield
        finally:
            self._readers -= 1
            self.await_reader()

    def await_reader(self) -> None:
        """Begins the grace time anew where nobody reads."""
        self._stop_grace()
        seconds = self.admitted.grace_seconds
        if self._readers or self.ended or self.parted or seconds is None:
            return
        reason = StreamCancelledError(f"nobody has read this stream for {seconds:g} seconds", code="no_reader")
        self._grace = asyncio.get_running_loop().call_later(seconds, self.stop, reason)

    async def follow(self, after: int) -> AsyncGenerator[bytes, None]:
        """The records after so many, to the end, or until this process parts with it."""
        position = after
        while True:
            while position < len(self.records):
                yield self.records[position]
                position += 1
            if self.ended or self.parted:
                return
            await self._changed.wait()

    def _wake_readers(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _stop_grace(self) -> None:
        if self._grace is not None:
            self._grace.cancel()
            self._grace = None
