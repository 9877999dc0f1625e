"""Sequences whose prefix lies in a lower tier: they wait in the queue while it is brought back, and others go on.

Pages are landed in the pool as they come, and are idle cached pages from then on, like those of any stream that has
ended: a restore holds nothing that a running sequence may need, so it can block nobody. What the pool evicts before the
sequence is admitted may be brought again, but no more than twice as many pages in all as it lacked at first; then it
computes what is missing. Uploads of others that it needs too are waited for, a bounded number of them.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from serving.engine.block_pool import BlockPool
from serving.engine.policies.restoring import is_worth
from serving.engine.prefix_pins import PrefixPins
from serving.engine.sequence import Sequence
from serving.engine.step_cost import StepCost
from serving.engine.tiers.moves import Tier
from serving.engine.tiers.page_tiers import PageTiers, Upload

MOST_AT_ONCE = 4  # sequences with pages on their way; others wait for their turn
_MOST_AWAITED = 16  # uploads of others
_AGAIN = 2


@dataclass(slots=True)
class _Restore:
    budget: int  # pages that may still be brought
    pages: int  # that the sequence needs in all
    in_flight: int = 0  # uploads
    awaited: int = 0  # uploads of others that were waited for
    last: int = -1  # the ticket of the newest of them
    tiers: dict[bytes, Tier] = field(default_factory=dict)  # where each page came from


class Restores:
    def __init__(self, pool: BlockPool, pins: PrefixPins, tiers: PageTiers, cost: StepCost) -> None:
        self._pool = pool
        self._pins = pins
        self._tiers = tiers
        self._cost = cost
        self._restores: dict[Sequence, _Restore] = {}
        self._coming: dict[bytes, int] = {}  # tickets
        self._owners: dict[int, _Restore] = {}  # by ticket
        self._refused = 0  # times in a row that computing was the faster

    @property
    def is_waiting(self) -> bool:
        """Whether something is on its way that a sequence may wait for."""
        return bool(self._coming)

    def begin_plan(self) -> None:
        """Lands what has come: the plan being made may read it."""
        self._tiers.begin_plan(self._pool.num_free, self._pool.lookup)
        for upload, good in self._tiers.take_ready():
            self._land(upload, good)
        for sequence in [s for s in self._restores if s.finished]:
            del self._restores[sequence]

    def must_wait(self, sequence: Sequence, cached: list[int]) -> bool:
        """Whether pages behind the `cached` ones are on their way, or have been sent for now."""
        wanted = self._wanted(sequence, len(cached))
        if not wanted:
            return False
        restore = self._restores.get(sequence)
        if restore is None:
            compute = self._cost.least_seconds(len(wanted) * self._pool.page_size)
            if not is_worth(self._tiers.copy_seconds(wanted), compute, self._refused):
                self._refused += 1
                return False
            self._refused = 0
            restore = _Restore(_AGAIN * len(wanted), self._pool.pages_for(len(sequence.tokens)))
        if not restore.in_flight and not self._may_begin(restore):
            return self._await(restore, wanted)
        self._restores[sequence] = restore
        self._pool.touch(cached)
        waits = self._await(restore, wanted)
        while restore.budget > 0 and (missing := [digest for digest in wanted if digest not in self._coming]):
            upload = self._tiers.fetch(missing[: restore.budget])
            if upload is None:
                return waits or self._await(restore, self._coming)
            self._note(restore, upload)
            waits = True
        return waits

    def admitted(self, sequence: Sequence, num_cached: int) -> None:
        """Counts what came from which tier, for a sequence with so many cached pages."""
        restore = self._restores.pop(sequence, None)
        if restore is not None:
            for index in range(num_cached):
                tier = restore.tiers.get(sequence.digest(index))
                if tier is not None:
                    self._tiers.counters[tier].hit_tokens += self._pool.page_size

    def _wanted(self, sequence: Sequence, first: int) -> list[bytes]:
        """Pages from `first` on that are not on the device, up to the first that no tier has."""
        wanted: list[bytes] = []
        for index in range(first, sequence.num_shareable):
            digest = sequence.digest(index)
            if digest in self._coming or self._tiers.find(digest) is not None:
                wanted.append(digest)
            elif self._pool.lookup(digest) is None:
                break
        return [digest for digest in wanted if self._pool.lookup(digest) is None]

    def _may_begin(self, restore: _Restore) -> bool:
        """Whether the pool has room for the whole sequence beside those that are being restored: or they would evict
        each other."""
        others = [other for other in self._owners.values() if other is not restore]
        active = {id(other): other.pages for other in others}
        return len(active) < MOST_AT_ONCE and restore.pages + sum(active.values()) <= self._pool.num_available

    def _note(self, restore: _Restore, upload: Upload) -> None:
        restore.last = upload.ticket
        restore.in_flight += 1
        restore.budget -= len(upload.sources)
        self._owners[upload.ticket] = restore
        for source in upload.sources:
            self._coming[source.digest] = upload.ticket
            restore.tiers[source.digest] = Tier.DISK if source.reads_file else Tier.HOST

    def _await(self, restore: _Restore, wanted: Iterable[bytes]) -> bool:
        """Whether a page of `wanted` is on its way, and the sequence has not waited for too many of others' uploads."""
        tickets = {self._coming[digest] for digest in wanted if digest in self._coming}
        if not tickets:
            return False
        if max(tickets) > restore.last:
            restore.last = max(tickets)
            restore.awaited += 1
        return restore.awaited <= _MOST_AWAITED

    def _land(self, upload: Upload, good: int) -> None:
        self._owners.pop(upload.ticket).in_flight -= 1
        digests = [source.digest for source in upload.sources]
        for digest in digests:
            del self._coming[digest]
        missing = [i for i, digest in enumerate(digests[:good]) if self._pool.lookup(digest) is None]
        pages = self._pool.take(len(missing)) if missing else None
        if pages is None:
            self._tiers.drop(upload)
            return
        place_of = dict(zip(missing, pages, strict=True))
        self._tiers.land(upload, tuple(place_of.get(i) for i in range(len(digests))))
        for i, page in place_of.items():
            self._pool.register(page, digests[i])
            self._pins.published(digests[i])
        self._pool.release(pages)
