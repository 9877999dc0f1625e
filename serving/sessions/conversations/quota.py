"""How much a store of conversations may hold for one tenant.

A store checks and counts in the transaction that writes, so of several processes the last one that fits is the last.
"""

from dataclasses import dataclass
from typing import Literal

from serving.errors import QuotaError

Limit = Literal["conversations", "conversation_items", "conversation_bytes"]
LIMITS: tuple[Limit, ...] = ("conversations", "conversation_items", "conversation_bytes")

_WHAT: dict[Limit, tuple[str, str]] = {
    "conversations": ("a tenant may keep {limit} conversations and chains of responses", "delete some"),
    "conversation_items": ("a conversation may have {limit} items", "begin another, or delete items"),
    "conversation_bytes": ("a tenant's conversations may have {limit} bytes", "delete some"),
}


@dataclass(frozen=True, slots=True)
class Size:
    """Of what a tenant has, or of what a write adds to it."""

    trees: int = 0
    items: int = 0  # of one tree
    bytes: int = 0  # names and values of all rows


@dataclass(frozen=True, slots=True)
class Quota:
    """None is no limit."""

    trees: int | None = None
    items: int | None = None
    bytes: int | None = None

    @property
    def bounds(self) -> tuple[int | None, int | None, int | None]:
        """In the order of LIMITS."""
        return self.trees, self.items, self.bytes

    def check(self, after: Size, growth: Size) -> None:
        """What a tenant would have, and what of it is new. What makes nothing larger is never refused. Raises
        QuotaError."""
        sizes = ((after.trees, growth.trees), (after.items, growth.items), (after.bytes, growth.bytes))
        for name, bound, (there, new) in zip(LIMITS, self.bounds, sizes, strict=True):
            if bound is not None and new > 0 and there > bound:
                raise exceeded(name, bound, there - new)


UNBOUNDED = Quota()


def exceeded(name: Limit, bound: int, used: int) -> QuotaError:
    rule, remedy = _WHAT[name]
    return QuotaError(f"{rule.format(limit=bound)}, and there are {used}: {remedy}", code=name, limit=bound, used=used)
