"""How many requests have come that nothing has been done for yet, and how late this process runs what is due.

To refuse a request in the application takes milliseconds: a queue's bound is no help where more come than can be
refused. They wait in the event loop and in the socket, together with those that were let in, and with their tokens.
So where many have come at once and the loop is late already, the protocol refuses the rest before the application.
"""

import asyncio

MOST_WAITING = 64  # that have come within one turn of a late loop
LATE_SECONDS = 0.25
_TICK_SECONDS = 0.05


class Arrivals:
    def __init__(self) -> None:
        self._waiting = 0
        self._late = 0.0
        self._due: float | None = None  # of the next tick, by the loop's time
        self._loop: asyncio.AbstractEventLoop | None = None

    def come(self, loop: asyncio.AbstractEventLoop) -> None:
        """A request whose task has just been made: it has begun when what is called after it is called."""
        if loop is not self._loop:
            self._loop, self._waiting, self._due = loop, 0, None
            self._tick()
        self._waiting += 1
        loop.call_soon(self._begun)

    @property
    def too_many(self) -> bool:
        return self._waiting >= MOST_WAITING and self.late_seconds > LATE_SECONDS

    @property
    def late_seconds(self) -> float:
        if self._loop is None or self._due is None:
            return 0.0
        return max(self._late, self._loop.time() - self._due)

    def _begun(self) -> None:
        self._waiting -= 1

    def _tick(self) -> None:
        assert self._loop is not None
        now = self._loop.time()
        self._late = 0.0 if self._due is None else now - self._due
        self._due = now + _TICK_SECONDS
        self._loop.call_at(self._due, self._tick)
