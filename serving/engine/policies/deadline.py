"""Requests that must end by a moment: stopped when it comes, and not begun where it cannot be met."""

import heapq

from serving.engine.sequence import Sequence
from serving.engine.step_cost import StepCost

_SLACK = 64  # entries of ended sequences that are kept before they are cleared away


def is_hopeless(sequence: Sequence, num_cached: int, cost: StepCost, now: float) -> bool:
    """Whether not even the first output that may be the last (`min_tokens`, at least one) can come in time, at the
    best rates measured. `num_cached` tokens need not be computed. Nothing is hopeless before anything was measured."""
    prefill = cost.least_seconds(len(sequence.tokens) - num_cached)
    still_to_come = sequence.sampling.min_tokens - (len(sequence.tokens) - sequence.num_prompt)
    decode = max(still_to_come - 1, 0) * cost.least_step_seconds()
    return now + prefill + decode > sequence.expires_at


class Deadlines:
    """Live sequences that have one, the next to expire first."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Sequence]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, sequence: Sequence, num_live: int) -> None:
        """`num_live` bounds how many ended ones may lie here until their time comes."""
        if len(self._heap) > 2 * num_live + _SLACK:
            self._heap = [entry for entry in self._heap if not entry[2].finished]
            heapq.heapify(self._heap)
        heapq.heappush(self._heap, (sequence.expires_at, sequence.arrival_number, sequence))

    def expired(self, now: float) -> list[Sequence]:
        """Takes out those whose moment has come."""
        expired: list[Sequence] = []
        while self._heap and self._heap[0][0] <= now:
            sequence = heapq.heappop(self._heap)[2]
            if not sequence.finished:
                expired.append(sequence)
        return expired
