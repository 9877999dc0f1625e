"""The live sequences, and what they hold: waiting ones nothing, running ones a device row and pages.

    waiting --admit--> running --remove--> (gone)
       ^                  |
       `---- preempt -----'

A sequence is in exactly one place. Running ones are kept by precedence, those of the background apart, so that a step
without batch work never looks for any.
"""

from bisect import insort
from collections.abc import Iterable, Iterator

from serving.engine.block_pool import BlockPool
from serving.engine.plan import Admission
from serving.engine.policies.order import BACKGROUND, ELDER, precedence
from serving.engine.prefix_sharing import PrefixSharing
from serving.engine.sequence import Sequence
from serving.engine.waiting_queue import WaitingQueue


class Roster:
    """`num_rows` device rows, and the pages of `pool`."""

    def __init__(self, pool: BlockPool, sharing: PrefixSharing, *, num_rows: int) -> None:
        self.pool = pool
        self.sharing = sharing
        self.waiting = WaitingQueue(lambda sequence: len(sharing.cached_pages(sequence)))
        self.foreground: list[Sequence] = []
        self.background: list[Sequence] = []
        self.free_rows = list(range(num_rows - 1, -1, -1))
        self.preemptions = 0
        self._num_rows = num_rows
        self._by_id: dict[str, Sequence] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Sequence]:
        """All, in order of arrival."""
        return iter(self._by_id.values())

    @property
    def num_running(self) -> int:
        return len(self.foreground) + len(self.background)

    @property
    def first(self) -> Sequence | None:
        """The first in precedence of those that run: it is nobody's victim."""
        running = self.foreground or self.background
        return running[0] if running else None

    def find(self, request_id: str) -> Sequence | None:
        return self._by_id.get(request_id)

    def enter(self, sequence: Sequence) -> None:
        """A request has come, and waits."""
        self._by_id[sequence.request_id] = sequence
        sequence.account.live += 1
        self.waiting.add(sequence)

    def admit(self, sequence: Sequence, pages: list[int], num_cached: int, now: float) -> Admission:
        """Gives a waiting sequence a row and `pages`, the first `num_cached` of them from the cache."""
        self.waiting.admit(sequence)
        admission = sequence.admit(self.free_rows.pop(), pages, num_cached, now)
        insort(self._running_with(sequence), sequence, key=precedence)
        self.sharing.announce(sequence)
        return admission

    def preempt(self, sequence: Sequence) -> None:
        """Back to the queue, at its place by arrival; its full pages stay in the cache while nobody needs them."""
        self._stop_running(sequence)
        self.waiting.add(sequence)
        self.preemptions += 1

    def remove(self, sequence: Sequence) -> None:
        """The stream has ended."""
        sequence.finished = True
        sequence.account.live -= 1
        del self._by_id[sequence.request_id]
        if sequence.row is None:
            self.waiting.remove(sequence)
        else:
            self._stop_running(sequence)

    def promote(self, sequence: Sequence) -> None:
        """Makes it an elder."""
        running = sequence.row is not None
        if running:
            self._running_with(sequence).remove(sequence)
        else:
            self.waiting.remove(sequence)
        sequence.rank = ELDER
        if running:
            insort(self.foreground, sequence, key=precedence)
        else:
            self.waiting.add(sequence)

    def own_pages(self, sequence: Sequence) -> int:
        """Pages that it shares with nobody. Those that it shares are the first of its table."""
        return len(sequence.page_table) - self.pool.num_shared(sequence.page_table)

    def check(self, pinned: Iterable[list[int]]) -> None:
        """Raises AssertionError where rows, pages and sequences do not add up."""
        running = [*self.foreground, *self.background]
        waiting = list(self.waiting)
        self.pool.check([*(sequence.page_table for sequence in running), *pinned])
        self.sharing.check(running)
        rows = [sequence.row for sequence in running]
        assert sorted([*self.free_rows, *(row for row in rows if row is not None)]) == list(range(self._num_rows))
        assert {id(s) for s in self} == {id(s) for s in [*waiting, *running]}
        assert len(self) == len(waiting) + len(running) == len(self.waiting) + self.num_running
        assert [precedence(s) for s in running] == sorted(precedence(s) for s in running)
        assert all(s.rank < BACKGROUND for s in self.foreground)
        assert not any(s.row is None or s.finished or s.remaining < 0 for s in running)
        assert not any(s.row is not None or s.page_table or s.finished for s in waiting)

    def _running_with(self, sequence: Sequence) -> list[Sequence]:
        return self.foreground if sequence.rank < BACKGROUND else self.background

    def _stop_running(self, sequence: Sequence) -> None:
        assert sequence.row is not None
        self._running_with(sequence).remove(sequence)
        self.free_rows.append(sequence.row)
        self.sharing.withdraw(sequence)
        self.pool.release(sequence.page_table)
        sequence.leave()
