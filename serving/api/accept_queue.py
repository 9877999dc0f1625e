"""How many connections the kernel has made that this process has not taken yet, and whether that is too many.

To refuse a request in the application takes a millisecond or two. Where more come than can be refused, they wait before
the door, those that will be let in among them, and nothing that predicts waits knows of it. So where the queue has
been long for a while, requests are refused by the protocol, at a tenth of the cost, until it is short again.
"""

import socket
import time
from collections.abc import Callable, Sequence

from serving.api.kernel_facts import UNACCEPTED

LONG, SHORT = 64, 8  # connections
PATIENCE_SECONDS = 1.0  # with a long queue: a burst that comes once is let in
CALM_SECONDS = 10.0  # with a short one, until it may be long again; it costs nobody anything while it is short


class AcceptQueue:
    """Of all sockets of a server; elsewhere than on Linux its length is unknown, and nothing is refused for it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sockets: list[socket.socket] = []
        self._is_overrun = False
        self._since: float | None = None  # long; or short, where it is overrun

    def watch(self, sockets: Sequence[socket.socket]) -> None:
        """Those that listen."""
        self._sockets = list(sockets)

    @property
    def length(self) -> int:
        return sum(UNACCEPTED.of(each) or 0 for each in self._sockets)

    def refuses(self) -> bool:
        """Whether the request that has just come is one too many."""
        length, now = self.length, self._clock()
        is_turning, patience = (
            (length < SHORT, CALM_SECONDS) if self._is_overrun else (length >= LONG, PATIENCE_SECONDS)
        )
        if not is_turning:
            self._since = None
        elif self._since is None:
            self._since = now
        elif now - self._since >= patience:
            self._is_overrun, self._since = not self._is_overrun, None
        return self._is_overrun and length >= SHORT
