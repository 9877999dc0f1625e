"""KV pages by number: who holds them, what they contain, which one to give up next.

A page is in one of three states:

    free    nobody holds it, its contents mean nothing     `_free`, a stack
    idle    nobody holds it, but its digest is registered  `_idle`, least recently released first
    held    one or more sequences have it in their table   `_holders[page] > 0`, registered or not

Only full pages are registered. Taking pages uses the free ones, then evicts idle ones. The pool knows nothing of
sequences or of steps; when contents may be registered is `prefix_sharing.py`'s business.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Protocol


class LowerTiers(Protocol):
    """Where pages go that the pool gives up."""

    def published(self, page: int, digest: bytes) -> None: ...

    def evicted(self, page: int, digest: bytes) -> None: ...


class BlockPool:
    """`num_pages` pages, numbered from 0, of `page_size` tokens each.

    `namespace` names whatever else the contents depend on (model, adapter, cache dtype). With `prefix_caching` off
    nothing is ever registered, so nothing is shared.
    """

    def __init__(
        self,
        num_pages: int,
        page_size: int,
        *,
        namespace: str = "",
        prefix_caching: bool = True,
        lower: LowerTiers | None = None,
    ) -> None:
        if num_pages < 1 or page_size < 1:
            raise ValueError(f"num_pages and page_size must be at least 1, not {num_pages} and {page_size}")
        self.num_pages = num_pages
        self.page_size = page_size
        self.namespace = namespace
        self.prefix_caching = prefix_caching
        self._lower = lower
        self._free = list(range(num_pages - 1, -1, -1))
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._holders = [0] * num_pages
        self._digest_of: list[bytes | None] = [None] * num_pages
        self._page_of: dict[bytes, int] = {}

    @property
    def num_available(self) -> int:
        """Pages that can be taken now: free, or idle and evictable."""
        return len(self._free) + len(self._idle)

    @property
    def num_free(self) -> int:
        """Pages that hold nothing."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        return self.num_pages - self.num_available

    def pages_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.page_size)

    def take(self, count: int) -> list[int] | None:
        """`count` pages with one holder each and contents that mean nothing, or None where there are not as many."""
        if count > self.num_available:
            return None
        return [self._take_one() for _ in range(count)]

    def lookup(self, digest: bytes) -> int | None:
        """The page registered under `digest`. Changes nothing: `share` it to keep it."""
        return self._page_of.get(digest)

    def num_idle(self, pages: Iterable[int]) -> int:
        """How many of `pages` nobody holds: sharing those makes fewer available."""
        return sum(page in self._idle for page in pages)

    def num_shared(self, table: Sequence[int]) -> int:
        """How many of the first pages of a page table have other holders too."""
        for count, page in enumerate(table):
            if self._holders[page] == 1:
                return count
        return len(table)

    def num_freed(self, tables: Iterable[Sequence[int]], kept: Iterable[int]) -> int:
        """How many pages would have no holder any more were these page tables released, `kept` not counted."""
        held = Counter(chain.from_iterable(tables))
        for page in kept:
            held.pop(page, None)
        return sum(self._holders[page] == count for page, count in held.items())

    def share(self, pages: Iterable[int]) -> None:
        """One more holder for each of `pages`, which must be registered."""
        for page in pages:
            if self._digest_of[page] is None:
                raise ValueError(f"page {page} is not registered, so nobody may share it")
            if self._holders[page] == 0:
                del self._idle[page]
            self._holders[page] += 1

    def register(self, page: int, digest: bytes) -> bool:
        """Lets others find `page` by `digest`. False where another page has that digest already: the first one wins,
        and this page stays its holder's own."""
        if self._holders[page] == 0:
            raise ValueError(f"page {page} has no holder, so nobody can vouch for its contents")
        if digest in self._page_of or self._digest_of[page] is not None:
            return False
        self._page_of[digest] = page
        self._digest_of[page] = digest
        if self._lower is not None:
            self._lower.published(page, digest)
        return True

    def touch(self, pages: Sequence[int]) -> None:
        """Makes those of a page table that nobody holds the last ones to be evicted."""
        for page in reversed(pages):
            if page in self._idle:
                self._idle.move_to_end(page)

    def release(self, pages: Sequence[int]) -> None:
        """One holder fewer for each page of a page table, in the table's order."""
        # From the end, so that the tail of a prefix is evicted before the head that it cannot be found without.
        for page in reversed(pages):
            if self._holders[page] < 1:
                raise ValueError(f"page {page} was released more often than it was taken")
            self._holders[page] -= 1
            if self._holders[page] == 0:
                if self._digest_of[page] is None:
                    self._free.append(page)
                else:
                    self._idle[page] = None

    def forget(self, namespace: str) -> None:
        """What the pages held is lost, or means something else from now on: none can be found any more. For a pool
        that nobody holds a page of."""
        if self.num_used:
            raise ValueError(f"{self.num_used} pages have holders, who would read what is no longer there")
        self.namespace = namespace
        self._free = list(range(self.num_pages - 1, -1, -1))
        self._idle.clear()
        self._page_of.clear()
        self._digest_of = [None] * self.num_pages

    def check(self, tables: Iterable[Sequence[int]]) -> None:
        """Raises AssertionError unless `tables`, the page tables of all holders, account for every page."""
        held = Counter(page for table in tables for page in table)
        free, idle = set(self._free), set(self._idle)
        assert len(free) == len(self._free), "a page is free twice"
        assert not free & idle, f"pages {free & idle} are both free and idle"
        for page in range(self.num_pages):
            holders, digest = self._holders[page], self._digest_of[page]
            assert holders == held[page], f"page {page} counts {holders} holders, {held[page]} tables have it"
            assert (holders == 0) == (page in free or page in idle), f"page {page} leaked or was given away twice"
            assert (page in idle) == (holders == 0 and digest is not None), f"page {page} is idle without a digest"
            assert digest is None or self._page_of.get(digest) == page, f"page {page} cannot be found by its digest"
        registered = sum(digest is not None for digest in self._digest_of)
        assert registered == len(self._page_of), "a digest leads to a page that does not have it"

    def _take_one(self) -> int:
        if self._free:
            page = self._free.pop()
        else:
            page, _ = self._idle.popitem(last=False)
            digest = self._digest_of[page]
            assert digest is not None
            del self._page_of[digest]
            self._digest_of[page] = None
            if self._lower is not None:
                self._lower.evicted(page, digest)
        self._holders[page] = 1
        return page
