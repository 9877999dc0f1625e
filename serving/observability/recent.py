"""What happened in the last minute, for who looks now: a histogram's quantiles and counts by name, second by second.

Prometheus keeps history; this forgets. All of it together is a few kilobytes, however many requests come.
"""

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence

WINDOW_SECONDS = 60
_SMALLEST = 1e-4  # seconds; what is shorter counts as that
_GROWTH = math.log(1.1)  # of a bucket's bounds: a quantile is within 5 % of the truth


class RecentCounts:
    def __init__(self, window_seconds: int = WINDOW_SECONDS) -> None:
        self._window = window_seconds
        self._seconds: deque[tuple[int, Counter[str | int]]] = deque()

    def add(self, now: float, name: str | int) -> None:
        second = int(now)
        if not self._seconds or self._seconds[-1][0] != second:
            self._forget(now)
            self._seconds.append((second, Counter()))
        self._seconds[-1][1][name] += 1

    def total(self, now: float) -> Counter[str | int]:
        """Of the whole window."""
        self._forget(now)
        found: Counter[str | int] = Counter()
        for _, counts in self._seconds:
            found.update(counts)
        return found

    def _forget(self, now: float) -> None:
        while self._seconds and self._seconds[0][0] <= now - self._window:
            self._seconds.popleft()


class RecentSeconds:
    """Durations, in buckets whose bounds grow by a tenth."""

    def __init__(self, window_seconds: int = WINDOW_SECONDS) -> None:
        self._counts = RecentCounts(window_seconds)

    def observe(self, now: float, seconds: float) -> None:
        self._counts.add(now, int(math.log(max(seconds, _SMALLEST) / _SMALLEST) / _GROWTH))

    def quantiles(self, now: float, wanted: Sequence[float]) -> list[float] | None:
        """In seconds; None where there was nothing."""
        buckets = sorted((int(bucket), count) for bucket, count in self._counts.total(now).items())
        total = sum(count for _, count in buckets)
        return [_at(buckets, share * total) for share in wanted] if total else None


def _at(buckets: Sequence[tuple[int, int]], rank: float) -> float:
    """The middle of the bucket that holds this rank."""
    seen, last = 0, buckets[-1][0]
    for bucket, count in buckets:
        seen += count
        if seen >= rank:
            last = bucket
            break
    return _SMALLEST * math.exp((last + 0.5) * _GROWTH)


class Recent:
    """The last minute of one API process."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self.first_token = RecentSeconds()
        self.between_tokens = RecentSeconds()
        self.refusals = RecentCounts()

    def refuse(self, reason: str) -> None:
        self.refusals.add(self._now(), reason)
