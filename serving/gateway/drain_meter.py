"""How fast a queue empties, measured only while there is one: an idle server says nothing about what it could do."""

import math

_MEMORY_SECONDS = 10.0  # of a queue: what lies further back counts for less than a third
_REST_SECONDS = 60.0  # without one: a rate that was never refreshed is unknown again after some minutes
_LEAST_SECONDS = 0.5  # of a queue, before there is an answer


class DrainMeter:
    """Amount per second, with an exponential memory over the seconds in which there was a queue."""

    def __init__(self) -> None:
        self._amount = 0.0
        self._seconds = 0.0

    def run(self, seconds: float) -> None:
        """So long there was a queue."""
        kept = math.exp(-seconds / _MEMORY_SECONDS)
        self._amount *= kept
        self._seconds = self._seconds * kept + seconds

    def rest(self, seconds: float) -> None:
        """So long there was none. What was learnt before fades, or a rate that was wrong once would keep away those who
        could show a better one."""
        kept = math.exp(-seconds / _REST_SECONDS)
        self._amount *= kept
        self._seconds *= kept

    def add(self, amount: float) -> None:
        """So much left it."""
        self._amount += amount

    @property
    def rate(self) -> float | None:
        """None until enough was seen. Never 0: a queue that stands still is taken to lose one soon."""
        if self._seconds < _LEAST_SECONDS:
            return None
        return max(self._amount, 0.5) / self._seconds
