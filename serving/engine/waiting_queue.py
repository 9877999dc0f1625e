"""Those who wait for a row and pages: by class, by tenant, by arrival.

Whose turn it is depends on what was served meanwhile (`policies/fairness.py`), so it is asked anew for each admission.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterator
from operator import attrgetter

from serving.engine.policies.fairness import Account, Ledger
from serving.engine.policies.hits import WINDOW, preferred
from serving.engine.policies.order import ELDER, RANKS
from serving.engine.request import GenerateRequest, Priority
from serving.engine.sequence import Sequence

_arrival = attrgetter("arrival_number")


class WaitingQueue:
    """`cached_pages` counts the leading pages of a sequence that are in the cache."""

    def __init__(self, cached_pages: Callable[[Sequence], int]) -> None:
        self._cached_pages = cached_pages
        self._classes = {rank: _ClassQueue(lifts=rank != ELDER) for rank in (ELDER, *RANKS.values())}

    def __len__(self) -> int:
        return sum(queue.count for queue in self._classes.values())

    def __iter__(self) -> Iterator[Sequence]:
        for queue in self._classes.values():
            yield from queue

    def count(self, priority: Priority) -> int:
        """How many of the class wait, but for its elder."""
        return self._classes[RANKS[priority]].count

    def any_of(self, ranks: Collection[int]) -> bool:
        return any(self._classes[rank].count for rank in ranks)

    def account(self, request: GenerateRequest) -> Account:
        return self._classes[RANKS[request.priority]].ledger.account(request.tenant)

    def accounts(self) -> Iterator[Account]:
        for queue in self._classes.values():
            yield from queue.ledger

    def add(self, sequence: Sequence) -> None:
        self._classes[sequence.rank].add(sequence)

    def remove(self, sequence: Sequence) -> None:
        self._classes[sequence.rank].remove(sequence)

    def admit(self, sequence: Sequence) -> None:
        """Takes out one whose turn it was."""
        queue = self._classes[sequence.rank]
        queue.pass_by(sequence)
        queue.remove(sequence)
        queue.ledger.leave(sequence.account)

    def next(self, ranks: Collection[int], skipped: Collection[Sequence]) -> Sequence | None:
        """Whose turn it is among `ranks` (in their order), but for `skipped`; None where nobody is left."""
        for rank in ranks:
            queue = self._classes[rank]
            if queue.count:
                window = queue.window(skipped)
                if window:
                    return preferred(window, self._cached_pages)
        return None


class _ClassQueue:
    """One class: a line for each tenant that has something waiting, in order of arrival."""

    def __init__(self, *, lifts: bool) -> None:
        """`lifts` False: accounts are other classes', whose counters say nothing of each other."""
        self._lifts = lifts
        self.ledger = Ledger()
        self.count = 0
        self._lines: dict[str, list[Sequence]] = {}

    def __iter__(self) -> Iterator[Sequence]:
        for line in self._lines.values():
            yield from line

    def add(self, sequence: Sequence) -> None:
        tenant = sequence.request.tenant
        line = self._lines.get(tenant)
        if line is None:
            if self._lifts:
                self.ledger.come_back(sequence.account, (line[0].account for line in self._lines.values()))
            line = self._lines[tenant] = []
        insort(line, sequence, key=_arrival)
        self.count += 1

    def remove(self, sequence: Sequence) -> None:
        """Raises ValueError where it does not wait here."""
        line = self._lines.get(sequence.request.tenant, [])
        at = bisect_left(line, sequence.arrival_number, key=_arrival)
        if at == len(line) or line[at] is not sequence:
            raise ValueError(f"{sequence.request_id} does not wait")
        del line[at]
        if not line:
            del self._lines[sequence.request.tenant]
        self.count -= 1

    def pass_by(self, sequence: Sequence) -> None:
        """Counts for those of its line before it that a later arrival went first."""
        for earlier in self._lines[sequence.request.tenant]:
            if earlier is sequence:
                return
            earlier.passed += 1

    def window(self, skipped: Collection[Sequence]) -> list[Sequence]:
        """The head of the line whose tenant was served least; of equals, of the one who came first."""
        if skipped:
            lines = [[s for s in line if s not in skipped] for line in self._lines.values()]
            lines = [line for line in lines if line]
        else:
            lines = list(self._lines.values())
        if len(lines) > 1:
            return min(lines, key=_turn)[:WINDOW]
        return lines[0][:WINDOW] if lines else []


def _turn(line: list[Sequence]) -> tuple[float, int]:
    return line[0].account.counter, line[0].arrival_number
