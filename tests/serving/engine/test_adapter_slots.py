"""Slots of adapters: who gets one, who goes, and that nobody is kept out."""

import random
from pathlib import Path

import pytest

from serving.engine.adapter_slots import AdapterSlots, Load, Ticket
from serving.errors import EngineError, NotFoundError, OverloadedError, RequestError

NAMES = ("a", "b", "c", "d", "e")


class Driven:
    """Slots whose loads are done at once, or when `finish` is called."""

    def __init__(self, count: int, *, at_once: bool = True, max_waiting: int = 100) -> None:
        self.slots = AdapterSlots.of(count, max_waiting)
        for name in NAMES:
            self.slots.add(name, Path(name))
        self.at_once = at_once
        self.begun: list[Load] = []
        self.served: list[Ticket] = []

    def ask(self, name: str) -> Ticket:
        ticket = self.slots.ask(name)
        self.advance()
        return ticket

    def release(self, ticket: Ticket) -> None:
        assert ticket.lease is not None
        self.slots.release(ticket.lease)
        self.advance()

    def advance(self) -> None:
        while True:
            served, loads = self.slots.advance()
            self.served += served
            self.begun += loads
            self.slots.check()
            if not (loads and self.at_once):
                return
            for load in loads:
                self.finish(load)

    def finish(self, load: Load) -> None:
        self.slots.loaded(load, load.name.encode())
        self.slots.check()


def test_an_adapter_is_loaded_once_for_all_that_wait() -> None:
    driven = Driven(2, at_once=False)
    tickets = [driven.ask("a") for _ in range(3)]
    assert [load.name for load in driven.begun] == ["a"]
    assert all(ticket.lease is None for ticket in tickets)
    driven.finish(driven.begun[0])
    driven.advance()
    assert all(ticket.lease is not None and ticket.lease.digest == b"a" for ticket in tickets)


def test_the_least_recently_used_idle_adapter_goes() -> None:
    driven = Driven(2)
    for name in ("a", "b", "a"):
        driven.release(driven.ask(name))
    driven.release(driven.ask("c"))
    assert {slot.adapter.name for slot in driven.slots.slots if slot.adapter} == {"a", "c"}


def test_a_held_adapter_stays_and_others_are_not_held_up_by_who_waits() -> None:
    driven = Driven(2)
    a, b = driven.ask("a"), driven.ask("b")
    more = driven.ask("b")
    waits = driven.ask("c")
    assert waits.lease is None
    assert driven.ask("b").lease is not None, "the one that more streams hold is not the one that is drained"
    behind = driven.ask("a")
    assert behind.lease is None, "a new stream may not keep the drained slot from who waits"
    driven.release(a)
    assert waits.lease is not None
    for ticket in (b, more):
        assert ticket.lease is not None


def test_a_drained_adapter_comes_back_after_who_waited() -> None:
    driven = Driven(1)
    a = driven.ask("a")
    c, again = driven.ask("c"), driven.ask("a")
    driven.release(a)
    assert c.lease is not None
    assert again.lease is None
    driven.release(c)
    assert again.lease is not None


def test_where_the_one_who_waited_leaves_the_drained_slot_is_open_again() -> None:
    driven = Driven(1)
    a = driven.ask("a")
    c, more = driven.ask("c"), driven.ask("a")
    driven.slots.leave(c)
    driven.advance()
    assert more.lease is not None
    assert a.lease is not None


def test_a_pinned_adapter_is_neither_evicted_nor_drained() -> None:
    driven = Driven(2)
    pinned = driven.slots.pin("a", True)
    driven.advance()
    assert pinned is not None
    driven.release(pinned)
    for name in ("b", "c", "d"):
        driven.release(driven.ask(name))
    assert driven.slots.slots[0].adapter is driven.slots.known["a"]
    held = driven.ask("b")
    assert driven.ask("c").lease is None
    assert driven.ask("a").lease is not None
    driven.release(held)


def test_one_slot_is_left_without_a_pin() -> None:
    driven = Driven(2)
    driven.slots.pin("a", True)
    with pytest.raises(RequestError, match="one has to be left"):
        driven.slots.pin("b", True)


def test_what_finds_no_place_in_the_queue_is_not_pinned() -> None:
    driven = Driven(2, at_once=False, max_waiting=1)
    driven.ask("a")
    with pytest.raises(OverloadedError):
        driven.slots.pin("b", True)
    assert not driven.slots.known["b"].pinned


def test_an_adapter_that_is_unloaded_leaves_with_its_last_stream() -> None:
    driven = Driven(1)
    held = driven.ask("a")
    waiting = driven.ask("a") if held.lease is None else None
    assert waiting is None
    driven.slots.remove("a")
    driven.advance()
    with pytest.raises(NotFoundError):
        driven.slots.ask("a")
    driven.slots.add("a", Path("other"))
    other = driven.ask("a")
    assert other.lease is None, "its name is another adapter's now"
    driven.release(held)
    assert other.lease is not None


def test_a_load_that_fails_fails_those_who_wait_and_leaves_the_slot_to_others() -> None:
    driven = Driven(1, at_once=False)
    first, other = driven.ask("a"), driven.ask("b")
    error = EngineError("broken")
    assert driven.slots.failed(driven.begun[0], error) == [first]
    assert first.error is error
    driven.advance()
    assert [load.name for load in driven.begun] == ["a", "b"]
    assert other.error is None


def test_the_queue_is_bounded() -> None:
    driven = Driven(1, max_waiting=1)
    driven.ask("a")
    driven.ask("b")
    with pytest.raises(OverloadedError):
        driven.ask("c")


@pytest.mark.parametrize("seed", range(40))
def test_after_any_history_everybody_who_waits_is_served_once_streams_end(seed: int) -> None:
    choose = random.Random(seed)
    driven = Driven(choose.randint(1, 3), at_once=False)
    tickets: list[Ticket] = []
    for _ in range(120):
        move = choose.random()
        if move < 0.4:
            tickets.append(driven.ask(choose.choice(sorted(driven.slots.known) or ["a"])))
        elif move < 0.7 and (held := [ticket for ticket in tickets if ticket.lease is not None]):
            gone = choose.choice(held)
            tickets.remove(gone)
            driven.release(gone)
        elif move < 0.85 and driven.begun:
            load = driven.begun.pop(0)
            if choose.random() < 0.2:
                driven.slots.failed(load, EngineError("broken"))
                driven.slots.check()
            else:
                driven.finish(load)
        elif move < 0.9 and tickets:
            gone = choose.choice(tickets)
            if gone.lease is None:
                tickets.remove(gone)
                driven.slots.leave(gone)
        elif len(driven.slots.known) > 2:
            driven.slots.remove(choose.choice(sorted(driven.slots.known)))
        elif missing := [name for name in NAMES if name not in driven.slots.known]:
            driven.slots.add(choose.choice(missing), Path("again"))
        driven.advance()
        tickets = [ticket for ticket in tickets if ticket.error is None]
    for _ in range(1000):
        while driven.begun:
            driven.finish(driven.begun.pop(0))
            driven.advance()
        held = [ticket for ticket in tickets if ticket.lease is not None]
        if not held:
            break
        tickets.remove(held[0])
        driven.release(held[0])
    assert tickets == []
    assert not driven.slots.waiting
