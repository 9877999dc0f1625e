"""What steps take, as measured: seconds by token bucket."""

from bisect import bisect_left
from collections import deque

STALE_AFTER = 256  # steps; what was measured before them is not trusted
_KEPT = 4  # measurements of a bucket


class StepCost:
    """`token_buckets`: the step sizes that are compiled, ascending; a step is padded to the next one."""

    def __init__(self, token_buckets: tuple[int, ...]) -> None:
        self._buckets = token_buckets
        self._measured = {bucket: deque[float](maxlen=_KEPT) for bucket in token_buckets}
        self._measured_at = dict.fromkeys(token_buckets, 0)
        self._steps = 0

    def observe(self, num_tokens: int, seconds: float) -> None:
        """A step of `num_tokens` took `seconds` on the device."""
        bucket = self._buckets[bisect_left(self._buckets, num_tokens)]
        self._steps += 1
        self._measured[bucket].append(seconds)
        self._measured_at[bucket] = self._steps

    def buckets_from(self, num_tokens: int) -> tuple[int, ...]:
        """The buckets that hold so many tokens."""
        return self._buckets[bisect_left(self._buckets, num_tokens) :]

    def seconds(self, bucket: int) -> float | None:
        """The longest of the last few steps of this size but one, which may have been an accident of the machine's;
        None where nothing was measured lately."""
        if not self._measured[bucket] or self._steps - self._measured_at[bucket] > STALE_AFTER:
            return None
        ordered = sorted(self._measured[bucket])
        return ordered[max(len(ordered) - 2, 0)]

    def least_seconds(self, num_tokens: int) -> float:
        """The least that computing so many tokens of a prompt has been seen to take; 0 where nothing was measured."""
        rates = [min(seconds) / bucket for bucket, seconds in self._measured.items() if seconds]
        return num_tokens * min(rates, default=0.0)

    def least_step_seconds(self) -> float:
        """The shortest step seen lately; 0 where none was."""
        return min((min(seconds) for seconds in self._measured.values() if seconds), default=0.0)


def buckets_up_to(limit: int) -> tuple[int, ...]:
    """Powers of two and `limit`: what to assume of a device of which nothing is known."""
    powers = [1 << i for i in range(limit.bit_length()) if 1 << i < limit]
    return (*powers, limit)
