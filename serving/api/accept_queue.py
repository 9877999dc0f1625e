"""How many connections the kernel has made that this process has not taken yet, and whether that is too many.

To refuse a request in the application takes a millisecond or two. Where more come than can be refused, they wait before
the door, those that will be let in among them, and nothing that predicts waits knows of it. So where the queue has
been long for a while, requests are refused by the protocol, at a tenth of the cost, until it is short again.
"""

import socket
import struct
import time
from collections.abc import Callable, Sequence

LONG, SHORT = 64, 8  # connections
PATIENCE_SECONDS = 1.0  # with a long queue: a burst that comes once is let in
CALM_SECONDS = 10.0  # with a short one, until it may be long again; it costs nobody anything while it is short
_TCP_INFO = getattr(socket, "TCP_INFO", None) if hasattr(socket, "SO_PEERCRED") else None  # as Linux has it
_WAITING = struct.Struct("24xI")  # of a socket that listens, `tcpi_unacked` is the queue's length


class AcceptQueue:
    """Of all sockets of a server; elsewhere than on Linux its length is unknown, and nothing is refused for it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sockets: list[socket.socket] = []
        self._is_overrun = False
        self._since: float | None = None  # long; or short, where it is overrun

    def watch(self, sockets: Sequence[socket.socket]) -> None:
        """Those that listen."""
        self._sockets = [each for each in sockets if each.family in (socket.AF_INET, socket.AF_INET6)]

    @property
    def length(self) -> int:
        if _TCP_INFO is None:
            return 0
        facts = (each.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _WAITING.size) for each in self._sockets)
        return sum(_WAITING.unpack(told)[0] for told in facts)

    def refuses(self) -> bool:
        """Whether the request that has just come is one too many."""
        length, now = self.length, self._clock()
        if self._is_overrun:
            refused = length >= SHORT
            self._since = None if refused else now if self._since is None else self._since
            if self._since is not None and now - self._since >= CALM_SECONDS:
                self._is_overrun, self._since = False, None
            return refused
        self._since = None if length < LONG else now if self._since is None else self._since
        if self._since is not None and now - self._since >= PATIENCE_SECONDS:
            self._is_overrun, self._since = True, None
        return self._is_overrun
