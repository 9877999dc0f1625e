"""When refused clients are told to come back: one after the other, at the rate at which the server takes them.

Without this all who were refused in one second would come back in one second, and be refused again.
"""

import math
import time
from collections.abc import Callable

LEAST_SECONDS = 1.0
MOST_SECONDS = 60.0


class Appointments:
    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._last = -math.inf

    def next(self, soonest_seconds: float, per_second: float | None) -> float:
        """Seconds from now: not before `soonest_seconds`, nor before those who were told a time already."""
        now = self._now()
        apart = 0.0 if per_second is None else 1.0 / per_second
        soonest = now + min(max(soonest_seconds, LEAST_SECONDS), MOST_SECONDS)
        self._last = min(max(soonest, self._last + apart), now + MOST_SECONDS)
        return self._last - now
