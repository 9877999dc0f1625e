import dataclasses

from serving.engine.client import EngineInfo
from serving.engine.request import Priority
from serving.gateway.appointments import MOST_SECONDS, Appointments
from serving.gateway.capacity import Capacity, Place
from tests.serving.gateway.clock import Clock

INFO = EngineInfo(
    model_name="m",
    vocab_size=10,
    max_model_len=4096,
    max_num_seqs=2,
    max_num_batched_tokens=100,
    page_size=16,
    num_pages=10,
    programs_compiled=0,
    startup_seconds=0.0,
)


def full(clock: Clock) -> tuple[Capacity, list[Place]]:
    """Both rows run."""
    capacity = Capacity(clock)
    capacity.meet(INFO)
    running = [capacity.join(Priority.STANDARD, "a", 10, 1) for _ in range(2)]
    for place in running:
        capacity.start(place, "a", 10, 0)
    return capacity, running


def turn_over(capacity: Capacity, clock: Clock, running: list[Place], times: int) -> None:
    """Each second one ends, and one that waited begins."""
    for _ in range(times):
        waiting = capacity.join(Priority.STANDARD, "a", 10, 1)
        clock.pass_(1)
        capacity.leave(running.pop(0))
        running.append(waiting)
        # The row that it takes was the last one: rows were full while it waited.
        capacity.start(waiting, "a", 10, 0)


def test_an_idle_server_lets_everybody_in_whatever_it_has_seen(clock: Clock) -> None:
    capacity, running = full(clock)
    turn_over(capacity, clock, running, 20)
    for place in running:
        capacity.leave(place)
    assert capacity.predict(Priority.BATCH, "a", 4000) == 0.0


def test_with_every_row_taken_the_wait_is_what_waits_over_the_rate_at_which_rows_come_free(clock: Clock) -> None:
    capacity, _ = full(clock)
    queue = [capacity.join(Priority.STANDARD, "a", 10, 1) for _ in range(8)]
    seen = []
    for place in queue[:4]:
        clock.pass_(2.0)
        # One row is free for a moment, between two steps: who takes it had waited for rows.
        capacity.start(place, "a", 10, 0)
        seen.append(capacity.predict(Priority.STANDARD))
    assert seen == sorted(seen, reverse=True)
    assert 8 <= seen[-1] <= 12  # five streams, with one every two seconds
    assert capacity.position(queue[6]) == 2
    assert capacity.wait_of(queue[6]) < capacity.wait_of(queue[7])


def test_a_queue_that_stands_still_waits_longer_and_longer(clock: Clock) -> None:
    capacity, _ = full(clock)
    capacity.join(Priority.STANDARD, "a", 10, 1)
    waits = []
    for _ in range(5):
        clock.pass_(5.0)
        waits.append(capacity.predict(Priority.STANDARD))
    assert waits == sorted(waits)
    assert waits[-1] > 2 * waits[0]


def test_a_class_does_not_wait_for_those_below_it(clock: Clock) -> None:
    capacity, _ = full(clock)
    for _ in range(20):
        capacity.join(Priority.BATCH, "a", 10, 1)
    clock.pass_(2.0)
    interactive, standard, batch = (capacity.predict(priority) for priority in Priority)
    assert interactive == standard < batch
    place = capacity.join(Priority.INTERACTIVE, "a", 10, 1)
    assert capacity.position(place) == 0


def test_prompts_wait_for_the_tokens_before_them(clock: Clock) -> None:
    """Rows are free, but more prompt tokens wait than a step takes."""
    capacity = Capacity(clock)
    capacity.meet(dataclasses.replace(INFO, max_num_seqs=1000))
    queue = [capacity.join(Priority.STANDARD, "a", 1000, 1) for _ in range(10)]
    for place in queue[:5]:
        clock.pass_(0.5)
        capacity.start(place, "a", 1000, 0)
    assert 2.5 <= capacity.predict(Priority.STANDARD, "a", 1000) <= 3.5  # 6000 tokens at 2000 per second
    for _ in range(40):
        capacity.start(capacity.join(Priority.STANDARD, "cached", 1000, 1), "cached", 1000, 900)
    assert capacity.predict(Priority.STANDARD, "cached", 1000) < capacity.predict(Priority.STANDARD, "a", 1000)


def wide(clock: Clock) -> Capacity:
    """Rows enough for what these tests send."""
    capacity = Capacity(clock)
    capacity.meet(dataclasses.replace(INFO, max_num_seqs=50))
    return capacity


def pass_prompts(capacity: Capacity, clock: Clock, count: int, tokens: int, seconds: float) -> None:
    """All of them come at once, and one begins every so many seconds and ends."""
    for place in [capacity.join(Priority.STANDARD, "a", tokens, 1) for _ in range(count)]:
        clock.pass_(seconds)
        capacity.start(place, "a", tokens, 0)
        capacity.leave(place)


def test_a_flood_of_prompts_of_one_token_says_nothing_of_how_fast_prompts_are_computed(clock: Clock) -> None:
    capacity = wide(clock)
    pass_prompts(capacity, clock, count=3000, tokens=1, seconds=0.02)
    for _ in range(8):
        assert capacity.predict(Priority.STANDARD, "a", 500) == 0.0
        capacity.join(Priority.STANDARD, "a", 500, 1)


def test_prompts_that_waited_for_nobody_do_not_make_the_rate_look_higher(clock: Clock) -> None:
    capacity = wide(clock)
    pass_prompts(capacity, clock, count=10, tokens=1000, seconds=0.5)
    for _ in range(1000):
        pass_prompts(capacity, clock, count=1, tokens=50, seconds=0.01)
    for _ in range(10):
        capacity.join(Priority.STANDARD, "a", 1000, 1)
    assert capacity.predict(Priority.STANDARD, "a", 1000) >= 5.0  # 11,000 tokens at 2000 a second


def test_a_rate_that_is_not_seen_again_is_forgotten_in_minutes(clock: Clock) -> None:
    capacity = wide(clock)
    pass_prompts(capacity, clock, count=10, tokens=1000, seconds=30.0)  # as where the machine stood still
    for place in [capacity.join(Priority.STANDARD, "a", 1000, 1) for _ in range(2)]:
        assert capacity.predict(Priority.STANDARD, "a", 1000) > 15.0
        capacity.leave(place)
    clock.pass_(300.0)
    for _ in range(8):
        assert capacity.predict(Priority.STANDARD, "a", 1000) == 0.0
        capacity.join(Priority.STANDARD, "a", 1000, 1)


def test_while_no_rate_is_known_two_batches_may_wait_and_no_more(clock: Clock) -> None:
    capacity, _ = full(clock)
    for _ in range(3):
        assert capacity.predict(Priority.STANDARD) == 0.0
        capacity.join(Priority.STANDARD, "a", 10, 1)
    capacity.join(Priority.STANDARD, "a", 10, 1)
    assert capacity.predict(Priority.STANDARD) == float("inf")


def test_refused_clients_are_told_times_one_after_the_other_and_never_too_far(clock: Clock) -> None:
    appointments = Appointments(clock)
    assert [appointments.next(3.0, 2.0) for _ in range(3)] == [3.0, 3.5, 4.0]
    assert all(appointments.next(3.0, 0.1) <= MOST_SECONDS for _ in range(100))
    clock.pass_(1000)
    assert appointments.next(0.0, None) == 1.0
    assert appointments.next(float("inf"), None) == MOST_SECONDS
