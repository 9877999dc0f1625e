"""The log in this process's memory: streams outlive their connections and the engine, but not the process."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from serving.errors import StreamLogError
from serving.sessions.generation_log import LOG_FULL, LOG_UNAVAILABLE, LogLimits, Page, Signals


@dataclass(slots=True)
class _Entry:
    admitted: bytes
    records: list[bytes] = field(default_factory=list)
    size: int = 0  # bytes
    ended_at: float | None = None  # by the clock


class MemoryGenerationLog:
    shared = False

    def __init__(self, limits: LogLimits | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits or LogLimits()
        self._clock = clock
        self._entries: dict[str, _Entry] = {}
        self._ended: dict[str, float] = {}  # in the order of their ends
        self._size = 0

    async def create(self, stream_id: str, admitted: bytes) -> None:
        self._make_room(len(admitted))
        self._entries[stream_id] = _Entry(admitted, size=len(admitted))
        self._size += len(admitted)

    async def append(self, stream_id: str, first: int, records: Sequence[bytes], *, ended: bool = False) -> None:
        entry = self._entries.get(stream_id)
        if entry is None:
            raise StreamLogError("the log has lost this stream", code=LOG_UNAVAILABLE)
        size = sum(map(len, records))
        self._make_room(size)
        entry.records += records
        entry.size += size
        self._size += size
        if ended:
            self._ended[stream_id] = entry.ended_at = self._clock()

    async def rewrite(self, stream_id: str, admitted: bytes, records: Sequence[bytes], *, ended: bool) -> None:
        self._drop(stream_id)
        await self.create(stream_id, admitted)
        await self.append(stream_id, 0, records, ended=ended)

    async def admitted(self, stream_id: str) -> bytes | None:
        entry = self._entries.get(stream_id)
        return None if entry is None else entry.admitted

    async def read(self, stream_id: str, after: int) -> Page | None:
        entry = self._entries.get(stream_id)
        return None if entry is None else Page(entry.records[after:], entry.ended_at is not None)

    async def cancel(self, stream_id: str) -> bool:
        entry = self._entries.get(stream_id)  # whoever asks is the holder, and knows that it is to end
        return entry is not None and entry.ended_at is None

    async def touch(self, stream_id: str) -> None:
        pass

    async def signals(self) -> dict[str, Signals]:
        return {}

    async def claim(self) -> list[str]:
        return []

    async def release(self, stream_ids: Sequence[str]) -> None:
        for stream_id in stream_ids:
            self._drop(stream_id)

    async def entries(self) -> list[str]:
        return list(self._entries)

    async def drop(self, stream_ids: Sequence[str]) -> None:
        for stream_id in stream_ids:
            self._drop(stream_id)

    async def trim(self) -> None:
        oldest = self._clock() - self._limits.retain_seconds
        for stream_id in [name for name, ended_at in self._ended.items() if ended_at <= oldest]:
            self._drop(stream_id)

    async def close(self) -> None:
        pass

    def _make_room(self, size: int) -> None:
        while self._size + size > self._limits.max_bytes and self._ended:
            self._drop(next(iter(self._ended)))
        if self._size + size > self._limits.max_bytes:
            raise StreamLogError("the log of streams is full", code=LOG_FULL)

    def _drop(self, stream_id: str) -> None:
        self._ended.pop(stream_id, None)
        entry = self._entries.pop(stream_id, None)
        if entry is not None:
            self._size -= entry.size
