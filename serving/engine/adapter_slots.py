"""Which adapter is in which slot, who holds it, and who waits for one: a pure state machine. No threads, no clock.

A stream holds its adapter's slot from before it is queued to its end. A slot that nobody holds keeps its adapter until
another one needs it: the least recently used goes first, pinned ones never. Where every slot is held, the one that
fewest streams hold is drained for the adapter that has waited longest: those that hold it go on, new ones wait behind.
So an adapter in constant demand cannot keep another one out, and streams of other adapters are not held up by either.
"""

from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from serving.engine.adapter_lease import AdapterLease
from serving.errors import NotFoundError, OverloadedError, RequestError, WeftError

RETRY_SECONDS = 5.0


@dataclass(slots=True)
class KnownAdapter:
    name: str
    folder: Path
    pinned: bool = False


@dataclass(slots=True)
class Slot:
    number: int
    adapter: KnownAdapter | None = None  # None: free. One that is known no more leaves with its last stream
    digest: bytes | None = None  # None: its weights are on their way
    held: int = 0  # streams
    last_used: int = 0
    draining: bool = False  # no new stream is let in

    @property
    def ready(self) -> bool:
        return self.adapter is not None and self.digest is not None


@dataclass(slots=True, eq=False)
class Ticket:
    """Waits for a slot with `adapter` in it; then has the lease, or what went wrong."""

    adapter: KnownAdapter
    lease: AdapterLease | None = None
    error: WeftError | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """To be written into a slot; then comes `loaded` or `failed`."""

    slot: int
    name: str
    folder: Path


@dataclass(slots=True)
class AdapterCounters:
    loads: int = 0
    evictions: int = 0


@dataclass(slots=True)
class AdapterSlots:
    slots: list[Slot]
    max_waiting: int
    known: dict[str, KnownAdapter] = field(default_factory=dict)
    waiting: deque[Ticket] = field(default_factory=deque)
    counters: AdapterCounters = field(default_factory=AdapterCounters)
    _clock: int = 0

    @classmethod
    def of(cls, count: int, max_waiting: int) -> "AdapterSlots":
        return cls([Slot(number) for number in range(count)], max_waiting)

    def add(self, name: str, folder: Path, digest: bytes | None = None) -> None:
        """Makes an adapter known. `digest` is of its files as they are now; None: not looked at. Raises RequestError
        where another one has its name, from another folder or in a slot with other weights."""
        there = self.known.get(name)
        slot = None if there is None else self._slot_of(there)
        is_other = slot is not None and slot.ready and digest is not None and slot.digest != digest
        if there is not None and (there.folder != folder or is_other):
            raise RequestError(
                f"there is an adapter {name!r} already: unload it first", param="name", code="adapter_exists"
            )
        if there is None:
            self.known[name] = KnownAdapter(name, folder)

    def remove(self, name: str) -> list[Ticket]:
        """Forgets an adapter: those that wait for it, which are returned, fail; those that have it go on. Raises
        NotFoundError."""
        adapter = self._known(name)
        del self.known[name]
        for slot in self.slots:
            if slot.adapter is adapter and slot.digest is not None and not slot.held:
                _empty(slot)
        return self._fail(adapter, _unknown(name))

    def pin(self, name: str, pinned: bool) -> Ticket | None:
        """Keeps an adapter in its slot, or lets it go again. What is returned is to be waited for, and its lease given
        back. Raises NotFoundError; RequestError where one slot would not be left for the others; as `ask` does."""
        adapter = self._known(name)
        if pinned and not adapter.pinned:
            count = sum(other.pinned for other in self.known.values())
            if count + 1 >= len(self.slots):
                raise RequestError(
                    f"{count} of {len(self.slots)} slots are pinned: one has to be left for other adapters",
                    param="pinned",
                    code="too_many_pins",
                )
        if not pinned:
            adapter.pinned = False
            return None
        slot = self._slot_of(adapter)
        if slot is not None:
            slot.draining = False
        ticket = self.ask(name)  # first, so that what is refused pins nothing
        adapter.pinned = True
        return ticket

    def ask(self, name: str) -> Ticket:
        """A lease at once where the adapter is in a slot, else after a load. Raises NotFoundError, OverloadedError."""
        ticket = Ticket(self._known(name))
        slot = self._slot_of(ticket.adapter)
        if slot is not None and slot.ready and not slot.draining:
            self._grant(ticket, slot)
            return ticket
        if len(self.waiting) >= self.max_waiting:
            raise OverloadedError(f"{len(self.waiting)} requests wait for slots of adapters", retry_after=RETRY_SECONDS)
        self.waiting.append(ticket)
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """Whoever waited has left."""
        if ticket in self.waiting:
            self.waiting.remove(ticket)

    def release(self, lease: AdapterLease) -> None:
        slot = self.slots[lease.slot]
        slot.held -= 1
        assert slot.held >= 0
        adapter = slot.adapter
        if not slot.held and adapter is not None and self.known.get(adapter.name) is not adapter:
            _empty(slot)

    def advance(self) -> tuple[list[Ticket], list[Load]]:
        """After anything has changed: the tickets that are served now, and the loads to begin."""
        if not self._without_slot():
            for slot in self.slots:
                slot.draining = False
        served = []
        for ticket in list(self.waiting):
            slot = self._slot_of(ticket.adapter)
            if slot is not None and slot.ready and not slot.draining:
                self.waiting.remove(ticket)
                self._grant(ticket, slot)
                served.append(ticket)
        loads = []
        for adapter in self._without_slot():
            slot = self._free_slot()
            if slot is None:
                self._drain_one()
                continue
            self.counters.evictions += slot.adapter is not None
            _empty(slot)
            slot.adapter = adapter
            loads.append(Load(slot.number, adapter.name, adapter.folder))
        return served, loads

    def loaded(self, load: Load, digest: bytes) -> None:
        """The adapter is in its slot."""
        slot = self.slots[load.slot]
        adapter = slot.adapter
        assert adapter is not None
        self.counters.loads += 1
        slot.digest = digest
        if self.known.get(adapter.name) is not adapter:
            _empty(slot)

    def failed(self, load: Load, error: WeftError) -> list[Ticket]:
        """The adapter could not be loaded. Returns those who waited."""
        slot = self.slots[load.slot]
        adapter = slot.adapter
        assert adapter is not None
        _empty(slot)
        return self._fail(adapter, error)

    def check(self) -> None:
        """Raises AssertionError where slots, leases and tickets do not add up. For tests."""
        assert [slot.number for slot in self.slots] == list(range(len(self.slots)))
        held = [slot.adapter for slot in self.slots if slot.adapter is not None]
        names = [adapter.name for adapter in held if self.known.get(adapter.name) is adapter]
        assert len(names) == len(set(names)), "an adapter is in two slots"
        assert all(not slot.held or slot.ready for slot in self.slots)
        assert all(ticket.lease is None and ticket.error is None for ticket in self.waiting)
        assert all(self.known.get(ticket.adapter.name) is ticket.adapter for ticket in self.waiting)
        assert sum(adapter.pinned for adapter in self.known.values()) < max(len(self.slots), 1)

    def _known(self, name: str) -> KnownAdapter:
        adapter = self.known.get(name)
        if adapter is None:
            raise _unknown(name)
        return adapter

    def _slot_of(self, adapter: KnownAdapter) -> Slot | None:
        return next((slot for slot in self.slots if slot.adapter is adapter), None)

    def _grant(self, ticket: Ticket, slot: Slot) -> None:
        assert slot.digest is not None
        self._clock += 1
        slot.held += 1
        slot.last_used = self._clock
        ticket.lease = AdapterLease(ticket.adapter.name, slot.number, slot.digest)

    def _without_slot(self) -> list[KnownAdapter]:
        """Each adapter that is waited for and is in no slot, the one that has been longest first."""
        wanted = {id(ticket.adapter): ticket.adapter for ticket in self.waiting}
        return [adapter for adapter in wanted.values() if self._slot_of(adapter) is None]

    def _free_slot(self) -> Slot | None:
        """An empty one, else the least recently used of those that nobody holds and nobody pinned."""
        idle = [slot for slot in self.slots if slot.adapter is None or (self._may_leave(slot) and not slot.held)]
        return min(idle, key=lambda slot: (slot.adapter is not None, slot.last_used), default=None)

    def _drain_one(self) -> None:
        """At most one slot for each adapter that waits and has none."""
        if sum(slot.draining for slot in self.slots) >= len(self._without_slot()):
            return
        going = [slot for slot in self.slots if self._may_leave(slot) and not slot.draining]
        chosen = min(going, key=lambda slot: (slot.held, slot.last_used), default=None)
        if chosen is not None:
            chosen.draining = True

    @staticmethod
    def _may_leave(slot: Slot) -> bool:
        return slot.ready and slot.adapter is not None and not slot.adapter.pinned

    def _fail(self, adapter: KnownAdapter, error: WeftError) -> list[Ticket]:
        failing = [ticket for ticket in self.waiting if ticket.adapter is adapter]
        for ticket in failing:
            self.waiting.remove(ticket)
            ticket.error = error
        return failing


def _empty(slot: Slot) -> None:
    slot.adapter, slot.digest, slot.draining, slot.last_used = None, None, False, 0


def _unknown(name: str) -> NotFoundError:
    return NotFoundError(f"there is no adapter {name[:100]!r} here", param="model", code="model_not_found")
