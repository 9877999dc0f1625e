"""Whether pages come back: copying those that nobody asks for again costs time and serves nobody."""

from collections import OrderedDict, deque

_REMEMBERED = 65_536  # names of pages, at least; 32 bytes each
_TURNS = 2  # of all of the device's pages: sooner nothing that it gave up can have been asked for again
_SHARE = 64  # one page in so many has to come back


class Reuse:
    """Of the last pages that came to the device, how many had been there before: computed again, because nothing had
    kept them, or brought back by a tier. So it goes on to be known while nothing is copied. Before the device's pages
    have been filled twice nothing is known, and pages are copied."""

    def __init__(self, device_pages: int) -> None:
        self._looks_back = _TURNS * device_pages
        self._most_names = max(_REMEMBERED, 4 * self._looks_back)
        self._names: OrderedDict[bytes, None] = OrderedDict()
        self._last: deque[bool] = deque()
        self._again = 0  # of `_last`

    @property
    def is_worth_copying(self) -> bool:
        return len(self._last) < self._looks_back or self._again * _SHARE >= self._looks_back

    def came(self, digest: bytes, *, brought: bool) -> None:
        """A page is on the device that was not: computed, or `brought` by a tier."""
        again = brought or digest in self._names
        self._names[digest] = None
        self._names.move_to_end(digest)
        if len(self._names) > self._most_names:
            self._names.popitem(last=False)
        self._last.append(again)
        self._again += again
        if len(self._last) > self._looks_back:
            self._again -= self._last.popleft()

    def forget(self) -> None:
        """Names mean other pages from now on."""
        self._names.clear()
