import pytest

from serving.api.stream_slots import StreamSlots
from serving.errors import OverloadedError, RequestError
from serving.observability.metrics import Metrics

GAUGE = Metrics("m").open_streams


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def slots(clock: Clock) -> StreamSlots:
    return StreamSlots(4, clock)


def _retry_after(slots: StreamSlots, count: int) -> float:
    with pytest.raises(OverloadedError) as caught, slots.take(count, GAUGE, param="n"):
        pass
    return caught.value.retry_after


def test_slots_come_back_however_the_block_ends(slots: StreamSlots) -> None:
    with slots.take(4, GAUGE, param="n"):
        assert slots.open == 4
    with pytest.raises(ValueError, match="x"), slots.take(2, GAUGE, param="n"):
        raise ValueError("x")
    assert slots.open == 0


def test_what_can_never_fit_is_the_clients_mistake(slots: StreamSlots) -> None:
    with pytest.raises(RequestError) as caught, slots.take(5, GAUGE, param="prompt"):
        pass
    assert caught.value.param == "prompt"


def test_the_wait_is_the_time_until_enough_streams_end(slots: StreamSlots, clock: Clock) -> None:
    for _ in range(200):
        with slots.take(1, GAUGE, param="n"):
            clock.now += 8.0
    with slots.take(4, GAUGE, param="n"):
        assert _retry_after(slots, 1) == pytest.approx(2.0, rel=0.01)
        assert _retry_after(slots, 3) == pytest.approx(6.0, rel=0.01)


def test_the_wait_is_bounded(slots: StreamSlots, clock: Clock) -> None:
    for _ in range(200):
        with slots.take(1, GAUGE, param="n"):
            clock.now += 1e6
    with slots.take(4, GAUGE, param="n"):
        assert _retry_after(slots, 4) == 120.0


def test_what_was_admitted_before_is_not_refused_and_counts() -> None:
    slots = StreamSlots(2)
    with slots.take(2, GAUGE, param="n"), slots.take(3, GAUGE, param="n", admitted=True):
        assert slots.open == 5
        with pytest.raises(OverloadedError), slots.take(1, GAUGE, param="n"):
            pass
    assert slots.open == 0


def test_each_model_counts_its_own_and_all_share_the_room() -> None:
    first = Metrics("first")
    second = first.of("second")
    slots = StreamSlots(3)

    def told() -> list[float | None]:
        names = ("first", "second")
        return [first.registry.get_sample_value("weft_open_streams", {"model_name": name}) for name in names]

    with slots.take(1, first.open_streams, param="n"), slots.take(2, second.open_streams, param="n"):
        assert told() == [1, 2]
        with pytest.raises(OverloadedError), slots.take(1, first.open_streams, param="n"):
            pass
    assert told() == [0, 0]
