"""What a request lost before it was read counts into what it is promised, where it has to wait at all."""

from serving.engine.request import Priority
from serving.gateway.capacity import Capacity
from serving.gateway.lag import Lag
from tests.serving.gateway.clock import Clock
from tests.serving.gateway.test_capacity import INFO, turn_over


def test_the_newest_request_counts_alone() -> None:
    lag = Lag(Clock())
    assert lag.unread == 0.0
    lag.read(2.0)
    lag.read(0.1)
    assert lag.unread == 0.1


def test_after_a_quiet_second_the_last_request_says_nothing_more() -> None:
    clock = Clock()
    lag = Lag(clock)
    lag.read(2.0)
    clock.pass_(1.0)
    assert lag.unread == 0.0


def test_it_adds_to_a_predicted_wait_and_keeps_nobody_from_an_idle_engine() -> None:
    clock = Clock()
    lag = Lag(clock)
    capacity = Capacity(clock, lag)
    capacity.meet(INFO)
    lag.read(20.0)
    assert capacity.predict(Priority.STANDARD) == 0.0
    running = [capacity.join(Priority.STANDARD, "a", 10, 1) for _ in range(2)]
    for place in running:
        capacity.start(place, "a", 10, 0)
    turn_over(capacity, clock, running, 20)
    waits = capacity.predict(Priority.STANDARD)
    assert waits > 0.0
    lag.read(20.0)
    assert capacity.predict(Priority.STANDARD) == waits + 20.0
    lag.of_timers = 1.0
    assert capacity.predict(Priority.STANDARD) == waits + 21.0
