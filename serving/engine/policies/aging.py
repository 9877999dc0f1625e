"""Why no class starves: the oldest sequence of a class that stands still for too long becomes an elder.

An elder goes before everybody, in the queue and among the running, until it ends; each class below the first has at
most one at a time. So a class's oldest sequence waits at most 1.5 `seconds` without a token computed before it runs
like one of the first class (the half is the granularity of looking), and what that costs the classes above is one row.
The next oldest is then the oldest. The clock is that of standing still, not of waiting, so a long queue of batch work
that moves produces no elders.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from serving.engine.policies.order import ELDER
from serving.engine.request import Priority
from serving.engine.sequence import Sequence

_LOOKS = 4  # in `seconds`
_AGING = (Priority.STANDARD, Priority.BATCH)


@dataclass(frozen=True, slots=True)
class _Watch:
    """What was seen of a class's oldest sequence, and since when it has not changed."""

    sequence: Sequence
    progress: int
    since: float


class Aging:
    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._next_look = float("-inf")
        self._elders: dict[Priority, Sequence] = {}
        self._watches: dict[Priority, _Watch] = {}

    def new_elders(self, live: Iterable[Sequence], now: float) -> list[Sequence]:
        """Those of `live`, given in order of arrival, that have just become elders; the caller sets their rank."""
        if now < self._next_look:
            return []
        self._next_look = now + self._seconds / _LOOKS
        oldest: dict[Priority, Sequence] = {}
        for sequence in live:
            if sequence.rank != ELDER:
                oldest.setdefault(sequence.request.priority, sequence)
        promoted = [s for s in map(oldest.get, _AGING) if s is not None and self._stands_still(s, now)]
        self._elders |= {sequence.request.priority: sequence for sequence in promoted}
        return promoted

    def _stands_still(self, sequence: Sequence, now: float) -> bool:
        priority = sequence.request.priority
        elder = self._elders.get(priority)
        if elder is not None and not elder.finished:
            return False
        watch, progress = self._watches.get(priority), sequence.progress
        if watch is None or watch.sequence is not sequence or watch.progress != progress:
            self._watches[priority] = _Watch(sequence, progress, now)
            return False
        return now - watch.since >= self._seconds
