"""What may be asked about pinned prefixes. An owner sees its own alone."""

import msgspec


class PinPrefix(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Keeps the whole pages of a prefix in the cache, in place of what `name` pinned before; pages that nobody has
    computed yet are kept once a stream has."""

    name: str
    owner: str
    token_ids: tuple[int, ...]
    salt: str  # that of the requests which are to find it
    seconds: float
    most: int  # prefixes that the owner may have


class UnpinPrefix(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Lets a prefix go before its time."""

    name: str
    owner: str


class ListPins(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    owner: str
