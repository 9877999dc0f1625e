"""What a live stream holds of an adapter."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AdapterLease:
    """A slot whose adapter stays in it while the stream lives."""

    name: str
    slot: int  # from 0
    digest: bytes  # of the adapter's weights: its pages are its own
