"""How fast the waiting queue empties: what a refused client is told to wait."""

_SMOOTHING = 0.2  # weight of the newest observation
_MIN_SECONDS = 1.0  # also the answer while nothing has been observed
_MAX_SECONDS = 60.0


class DrainRate:
    """A moving average of the seconds between departures from the queue, while somebody waits in it."""

    def __init__(self) -> None:
        self._last: float | None = None  # departure, or when somebody was first left waiting; None: nobody is
        self._interval: float | None = None

    def observe(self, now: float, departures: int, waiting: int) -> None:
        """`departures` sequences left the queue at `now` (seconds on the caller's clock), and `waiting` did not."""
        if departures and self._last is not None:
            interval = max(0.0, now - self._last) / departures
            previous = interval if self._interval is None else self._interval
            self._interval = previous + _SMOOTHING * (interval - previous)
        if not waiting:
            self.restart()
        elif departures or self._last is None:
            self._last = now

    def restart(self) -> None:
        """The queue is empty: how long until somebody comes and leaves it again says nothing about those who wait."""
        self._last = None

    def retry_after(self, queue_length: int) -> float:
        """Seconds until half of the queue is likely gone: those who come back then find room, and the engine has not
        run dry waiting for them."""
        seconds = (self._interval or 0.0) * queue_length / 2
        return min(max(seconds, _MIN_SECONDS), _MAX_SECONDS)
