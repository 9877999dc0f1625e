"""The durable log of generations: one interface over memory, SQLite and Redis.

An entry is a request as admitted and a growing list of records, all of them bytes. One process at a time holds an
unfinished entry and alone appends to it; an entry whose holder has ended, or has released it, is claimed by another.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

LOG_FULL = "log_full"
LOG_UNAVAILABLE = "log_unavailable"


class NotHeldError(Exception):
    """Another process has taken the entry up, or it is gone: whoever appends must stop."""


@dataclass(frozen=True, slots=True)
class Page:
    """The records of an entry after a position."""

    records: list[bytes]
    ended: bool  # nothing comes after these


@dataclass(frozen=True, slots=True)
class Signals:
    """What other processes left for the holder of an entry."""

    cancelled: bool
    reads: int  # grows while somebody reads it there


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLimits:
    """Of all entries together. Finished entries go after `retain_seconds`, and the oldest of them earlier where
    `max_bytes` are reached. Beyond that, writing fails with the code `log_full`."""

    retain_seconds: float = 600.0  # after the end; a process that starts counts anew
    max_bytes: int = 256 << 20


class GenerationLog(Protocol):
    """Every method raises StreamLogError where the log cannot be reached or is full."""

    @property
    def shared(self) -> bool:
        """Other processes see it, and can go on with what this one releases."""
        ...

    async def create(self, stream_id: str, admitted: bytes) -> None:
        """A new entry, held by this process."""
        ...

    async def append(self, stream_id: str, first: int, records: Sequence[bytes], *, ended: bool = False) -> None:
        """Returns once they are written. `first` is the position of the first of them. Raises NotHeldError."""
        ...

    async def rewrite(self, stream_id: str, admitted: bytes, records: Sequence[bytes], *, ended: bool) -> None:
        """The whole entry anew, held by this process: after a failure, when nobody knows what was written. Raises
        NotHeldError where another process holds it by now."""
        ...

    async def admitted(self, stream_id: str) -> bytes | None: ...

    async def read(self, stream_id: str, after: int) -> Page | None:
        """Without the first `after` records. None: there is no such entry."""
        ...

    async def cancel(self, stream_id: str) -> bool:
        """Asks the holder, whoever it is. Whether there is anything to end."""
        ...

    async def touch(self, stream_id: str) -> None:
        """Tells the holder that somebody reads it here."""
        ...

    async def signals(self) -> dict[str, Signals]:
        """Of each unfinished entry that this process holds. Also says that this process lives, where the log needs to
        be told."""
        ...

    async def claim(self) -> list[str]:
        """Takes the unfinished entries that nobody holds."""
        ...

    async def release(self, stream_ids: Sequence[str]) -> None:
        """Leaves unfinished entries to other processes."""
        ...

    async def entries(self) -> list[str]:
        """All of them, ended or not, whoever holds them."""
        ...

    async def drop(self, stream_ids: Sequence[str]) -> None:
        """Whoever holds them. They are gone from the disk too, as far as this process can see to it."""
        ...

    async def trim(self) -> None:
        """Drops what need not be retained."""
        ...

    async def close(self) -> None: ...
