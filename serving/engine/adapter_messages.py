"""Operations on adapters, as they cross to the engine (see `operation.py`)."""

import msgspec


class LoadAdapter(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Makes an adapter known by a name; it takes a slot when a stream asks for it."""

    name: str
    folder: str  # inside of the one that the deployment names for this


class UnloadAdapter(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Forgets an adapter. Streams that have it go on; those that wait for it fail."""

    name: str


class PinAdapter(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Brings an adapter into a slot and keeps it there, or lets it go again when the slot is needed."""

    name: str
    pinned: bool


class ListAdapters(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Changes nothing."""
