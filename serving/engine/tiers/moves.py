"""What moves between the tiers of the prefix cache, and who moves it.

    device   pages of the pool           `block_pool.py`
    host     slots of host memory        `host_pages.py`
    disk     files, a page each          `page_files.py`

`PageTiers` decides, on the engine's thread; a `PageMover` carries it out, beside the steps. What is to happen on the
device (reading a page, writing one) is queued there between two steps, in the order in which it was asked for.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class Tier(StrEnum):
    DEVICE = "device"
    HOST = "host"
    DISK = "disk"


@dataclass(frozen=True, slots=True)
class Saving:
    """A page of the device that goes to a slot of host memory."""

    digest: bytes
    page: int
    slot: int


@dataclass(frozen=True, slots=True)
class Source:
    """A page that goes to the device, from a slot; where `reads_file`, its file is read into that slot first."""

    digest: bytes
    slot: int
    reads_file: bool


@dataclass(frozen=True, slots=True)
class Saved:
    """Pages have arrived in host memory, or have not."""

    digests: tuple[bytes, ...]
    ok: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class Loaded:
    """Pages wait beside the pool, ready to be landed: all `sources` but those from `good` on, and none of `bad`, whose
    files were lost or damaged and are gone now."""

    ticket: int
    good: int
    bad: tuple[bytes, ...]
    seconds: float  # from the thread's first touch
    file_seconds: float = 0.0  # of those, reading files


@dataclass(frozen=True, slots=True)
class Written:
    """A page has its file, or could not be written."""

    digest: bytes
    ok: bool
    seconds: float


Finished = Saved | Loaded | Written


class PageMover(Protocol):
    """Nothing here waits; `finished` says what has come about since it was last asked, and `on_finished` is called,
    from any thread, when there is something."""

    on_finished: Callable[[], None]

    @property
    def batch(self) -> int:
        """The most pages of one `save` or `load`."""
        ...

    def save(self, pages: tuple[Saving, ...]) -> None:
        """Reads pages behind the last step dispatched and copies them to their slots."""
        ...

    def load(self, ticket: int, sources: tuple[Source, ...]) -> None:
        """Brings pages to the device, beside the pool."""
        ...

    def land(self, ticket: int, places: tuple[int | None, ...]) -> None:
        """Writes what was loaded to these pages, before the next step dispatched; None: that one is not needed."""
        ...

    def drop(self, ticket: int) -> None:
        """Lets go of what was loaded."""
        ...

    def write(self, digest: bytes, slot: int) -> None:
        """Writes a slot's file."""
        ...

    def delete(self, digest: bytes) -> None:
        """Removes a page's file."""
        ...

    def finished(self) -> list[Finished]: ...

    def close(self) -> None: ...
