"""How many generations may be open at once, and when a client who was refused should ask again."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from prometheus_client import Gauge

from serving.errors import OverloadedError, RequestError

_MEMORY = 0.1  # weight of the newest stream in the running mean of how long one lasts
_FIRST_GUESS_SECONDS = 5.0
_LONGEST_WAIT_SECONDS = 120.0


class StreamSlots:
    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._clock = clock
        self._open = 0
        self._mean_seconds = _FIRST_GUESS_SECONDS

    @property
    def open(self) -> int:
        return self._open

    @contextmanager
    def take(self, count: int, gauge: Gauge, *, param: str, admitted: bool = False) -> Iterator[None]:
        """`gauge` counts those of one model; the limit is for those of all together. Raises OverloadedError where so
        many are not free, RequestError (of `param`) where they never can be; neither for what was `admitted` before, by
        a process that is gone."""
        if not admitted:
            self._check(count, param)
        self._open += count
        gauge.inc(count)
        start = self._clock()
        try:
            yield
        finally:
            self._open -= count
            gauge.dec(count)
            self._mean_seconds += _MEMORY * (self._clock() - start - self._mean_seconds)

    def _check(self, count: int, param: str) -> None:
        if count > self._limit:
            raise RequestError(
                f"the request asks for {count} choices in all; this server generates at most {self._limit} at once",
                param=param,
                code="too_many_choices",
            )
        if self._open + count > self._limit:
            raise OverloadedError(
                f"{self._open} of {self._limit} generations are open; try again later",
                retry_after=self._wait_seconds(count),
                code="too_many_streams",
            )

    def _wait_seconds(self, count: int) -> float:
        """With N open that last t seconds each, one ends every t/N seconds."""
        missing = self._open + count - self._limit
        return min(missing * self._mean_seconds / max(self._open, 1), _LONGEST_WAIT_SECONDS)
