"""How far this process is behind: what a request loses before and beside the engine's queue. Seconds."""

import time
from collections.abc import Callable

_FRESH_SECONDS = 1.0  # what the last request had waited says something about the next one


class Lag:
    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self.of_timers = 0.0  # what this process does not get to, it does not answer either
        self._unread = 0.0
        self._read_at = float("-inf")

    def read(self, unread: float) -> None:
        """A request came whose bytes had lain unread for so long: what is promised it counts from then."""
        self._unread, self._read_at = unread, self._now()

    @property
    def unread(self) -> float:
        """Of the newest request; nothing after a quiet second."""
        return self._unread if self._now() - self._read_at < _FRESH_SECONDS else 0.0
