"""Whether pages come back: copying those that nobody asks for again costs time and serves nobody."""

from collections import OrderedDict, deque

_REMEMBERED = 65_536  # names of pages; 32 bytes each
_LAST = 512  # pages that the decision looks back on
_FEWEST = 128  # below which it is not made, and pages are copied
_SHARE = 64  # one page in so many has to come back


class Reuse:
    """Of the last pages that came to the device, how many had been there before: computed again, because nothing had
    kept them, or brought back by a tier. So it goes on to be known while nothing is copied."""

    def __init__(self) -> None:
        self._names: OrderedDict[bytes, None] = OrderedDict()
        self._last: deque[bool] = deque(maxlen=_LAST)
        self._again = 0  # of `_last`

    @property
    def is_worth_copying(self) -> bool:
        return len(self._last) < _FEWEST or self._again * _SHARE >= len(self._last)

    def came(self, digest: bytes, *, brought: bool) -> None:
        """A page is on the device that was not: computed, or `brought` by a tier."""
        again = brought or digest in self._names
        self._names[digest] = None
        self._names.move_to_end(digest)
        if len(self._names) > _REMEMBERED:
            self._names.popitem(last=False)
        if len(self._last) == _LAST:
            self._again -= self._last[0]
        self._last.append(again)
        self._again += again

    def forget(self) -> None:
        """Names mean other pages from now on."""
        self._names.clear()
