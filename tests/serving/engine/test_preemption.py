"""The newest gives way, so the oldest never has to."""

from serving.engine.preemption import choose_victim
from tests.serving.engine.live_sequences import sequence


def test_the_victim_is_the_last_to_have_arrived_whatever_the_order_given() -> None:
    first, second, third = (sequence(arrival_number=number) for number in range(3))
    assert choose_victim([first, third, second]) is third
    assert choose_victim([second, first]) is second
    assert choose_victim([first]) is first
