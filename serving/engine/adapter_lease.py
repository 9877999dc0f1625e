"""What a live stream holds of an adapter, and what others see of one."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AdapterLease:
    """A slot whose adapter stays in it while the stream lives."""

    name: str
    slot: int  # from 0
    digest: bytes  # of the adapter's weights: its pages are its own


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterState:
    """What an operator sees of one."""

    name: str
    slot: int | None  # None: in none
    pinned: bool
    streams: int  # that have it
