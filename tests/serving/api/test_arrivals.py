"""Many at once are too many where the loop is late already; either by itself is not."""

from asyncio import AbstractEventLoop
from collections.abc import Callable
from typing import cast

from serving.api.arrivals import LATE_SECONDS, MOST_WAITING, Arrivals


class TurningLoop:
    """An event loop whose turns and time a test makes."""

    def __init__(self) -> None:
        self.now = 0.0
        self.soon: list[Callable[[], None]] = []
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now

    def call_soon(self, called: Callable[[], None]) -> None:
        self.soon.append(called)

    def call_at(self, at: float, called: Callable[[], None]) -> None:
        self.timers.append((at, called))

    def turn(self, seconds: float) -> None:
        """What is due is run; then so much time goes by with it."""
        due, self.soon = self.soon, []
        timed = [called for at, called in self.timers if at <= self.now]
        self.timers = [(at, called) for at, called in self.timers if at > self.now]
        for called in (*due, *timed):
            called()
        self.now += seconds


def come(arrivals: Arrivals, loop: TurningLoop, count: int) -> None:
    for _ in range(count):
        arrivals.come(cast(AbstractEventLoop, loop))


def test_a_burst_is_let_in_where_the_loop_is_not_late() -> None:
    arrivals, loop = Arrivals(), TurningLoop()
    come(arrivals, loop, 10 * MOST_WAITING)
    assert not arrivals.too_many


def test_a_late_loop_lets_in_so_many_a_turn() -> None:
    arrivals, loop = Arrivals(), TurningLoop()
    come(arrivals, loop, MOST_WAITING)
    loop.turn(2 * LATE_SECONDS)  # so long took what they wanted
    assert not arrivals.too_many  # they have begun
    come(arrivals, loop, MOST_WAITING - 1)
    assert not arrivals.too_many
    come(arrivals, loop, 1)
    assert arrivals.too_many
    loop.turn(0.0)
    assert not arrivals.too_many


def test_it_is_in_time_again_when_its_ticks_are() -> None:
    arrivals, loop = Arrivals(), TurningLoop()
    come(arrivals, loop, 1)
    loop.turn(2 * LATE_SECONDS)
    loop.turn(0.0)
    assert arrivals.late_seconds > LATE_SECONDS
    loop.now = loop.timers[0][0]
    loop.turn(0.0)
    assert arrivals.late_seconds == 0.0
    come(arrivals, loop, MOST_WAITING)
    assert not arrivals.too_many


def test_another_loop_begins_anew() -> None:
    arrivals, loop = Arrivals(), TurningLoop()
    come(arrivals, loop, MOST_WAITING)
    loop.now = 1.0
    assert arrivals.too_many
    other = TurningLoop()
    other.now = 9.0
    come(arrivals, other, MOST_WAITING)
    assert not arrivals.too_many
