"""Prefixes that stay in the cache for a time, such as a system prompt with its tools.

A pin is one more holder of pages: of those that are cached when it is made at once, of the others as soon as a stream
has computed them. Held pages are not evicted, so pins are bounded: together they may hold at most a share of the pool,
and never so much that the longest request which may come would not fit beside them.
"""

from dataclasses import dataclass, field

from serving.engine.block_pool import BlockPool
from serving.engine.page_hash import page_digest, root_digest
from serving.errors import OverloadedError, RequestError

_SHARE = 0.25  # of the pool, for all pins together


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedPrefix:
    """How much of a prefix is pinned."""

    name: str = ""
    seconds: float = 0.0  # until it is let go
    pages: int  # whole pages of the prefix
    held: int  # of those, computed and held now


@dataclass(slots=True)
class _Pin:
    expires_at: float
    num_pages: int
    salt: str
    token_ids: tuple[int, ...]
    missing: set[bytes]  # digests of pages that nobody has computed yet
    pages: list[int] = field(default_factory=list)


class PrefixPins:
    """`reserve` pages are left to requests whatever is pinned."""

    def __init__(self, pool: BlockPool, *, reserve: int) -> None:
        self._pool = pool
        self._most_pages = max(0, min(int(pool.num_pages * _SHARE), pool.num_pages - reserve))
        self._pins: dict[tuple[str, str], _Pin] = {}  # by owner and name

    @property
    def num_pages(self) -> int:
        """Pages that the pins hold or wait for, a page of two pins counted twice."""
        return sum(pin.num_pages for pin in self._pins.values())

    def owned(self, owner: str, now: float) -> list[PinnedPrefix]:
        """Those of one owner, in the order in which they were made."""
        return [
            PinnedPrefix(name=name, seconds=pin.expires_at - now, pages=pin.num_pages, held=len(pin.pages))
            for (other, name), pin in self._pins.items()
            if other == owner
        ]

    @property
    def tables(self) -> list[list[int]]:
        return [pin.pages for pin in self._pins.values()]

    def pin(
        self,
        name: str,
        token_ids: tuple[int, ...],
        salt: str,
        expires_at: float,
        *,
        owner: str = "",
        most: int | None = None,
    ) -> PinnedPrefix:
        """Pins the whole pages of a prefix until `expires_at`, in place of what the owner's `name` pinned before. An
        owner may have `most` pins.

        Raises RequestError where there is nothing to pin, OverloadedError where the pins' share of the pool, or the
        owner's of the pins, is taken.
        """
        count = len(token_ids) // self._pool.page_size
        if not self._pool.prefix_caching:
            raise RequestError("a prefix cannot be pinned: engine.prefix_caching is off", code="pin_refused")
        if count < 1:
            raise RequestError(
                f"a prefix to pin must have at least one page of {self._pool.page_size} tokens, not {len(token_ids)}",
                param="token_ids",
                code="pin_too_short",
            )
        key = owner, name
        before = self._pins[key].num_pages if key in self._pins else 0
        others = sum(other == owner for other, _ in self._pins) - (key in self._pins)
        if most is not None and others >= most:
            raise OverloadedError(
                f"{others} prefixes are pinned, and {most} may be: let one go, or wait until one expires",
                retry_after=60.0,
                code="too_many_pins",
            )
        if self.num_pages - before + count > self._most_pages:
            raise OverloadedError(
                f"the prefix has {count} pages, and pins may hold {self._most_pages} of {self._pool.num_pages}, of "
                f"which {self.num_pages - before} are taken",
                retry_after=60.0,
                code="pins_full",
            )
        digests = _digests(root_digest(self._pool.namespace, salt), token_ids, self._pool.page_size)
        pin = _Pin(expires_at, count, salt, token_ids, set(digests))
        for digest in digests:
            self._hold(pin, digest)
        self.unpin(name, owner=owner)
        self._pins[key] = pin
        return PinnedPrefix(name=name, pages=count, held=len(pin.pages))

    def unpin(self, name: str, *, owner: str = "") -> bool:
        """Gives a pin's pages back to the cache; False where the owner has no such pin."""
        pin = self._pins.pop((owner, name), None)
        if pin is None:
            return False
        self._pool.release(pin.pages)
        return True

    def expire(self, now: float) -> None:
        for owner, name in [key for key, pin in self._pins.items() if pin.expires_at <= now]:
            self.unpin(name, owner=owner)

    def release(self) -> None:
        """Lets go of all pages. The pins stay: `renew` has them wait for pages to come."""
        for pin in self._pins.values():
            self._pool.release(pin.pages)
            pin.pages = []

    def renew(self) -> None:
        """After `release`: each pin waits for its pages, by their names in the pool's namespace."""
        for pin in self._pins.values():
            root = root_digest(self._pool.namespace, pin.salt)
            pin.missing = set(_digests(root, pin.token_ids, self._pool.page_size))

    def published(self, digest: bytes) -> None:
        """A page can be found by `digest`: held by the pins that wait for it."""
        for pin in self._pins.values():
            if digest in pin.missing:
                self._hold(pin, digest)

    def _hold(self, pin: _Pin, digest: bytes) -> None:
        page = self._pool.lookup(digest)
        if page is not None:
            self._pool.share([page])
            pin.pages.append(page)
            pin.missing.discard(digest)


def _digests(root: bytes, token_ids: tuple[int, ...], page_size: int) -> list[bytes]:
    digests: list[bytes] = []
    for start in range(0, len(token_ids) - page_size + 1, page_size):
        digests.append(page_digest(digests[-1] if digests else root, token_ids[start : start + page_size]))
    return digests
