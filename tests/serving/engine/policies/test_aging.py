"""A lower class gets one stream through, however many of a higher one come."""

from collections.abc import Callable

from serving.engine.policies.aging import Aging
from serving.engine.policies.order import ELDER, RANKS
from serving.engine.request import GenerateRequest, Priority, SamplingParams
from serving.engine.sequence import Sequence
from tests.serving.engine.driven_scheduler import DrivenScheduler

AGING = 20.0  # seconds; a step of a DrivenScheduler is one


def _live(number: int, priority: Priority) -> Sequence:
    request = GenerateRequest(
        request_id=str(number), prompt_token_ids=(1, 2, 3), sampling=SamplingParams(), priority=priority
    )
    return Sequence(
        request,
        arrival_number=number,
        arrival_time=0.0,
        max_model_len=100,
        page_size=4,
        namespace="",
        rank=RANKS[priority],
    )


def test_only_the_oldest_of_each_lower_class_becomes_an_elder_and_only_when_it_stands_still() -> None:
    live = [_live(0, Priority.BATCH), _live(1, Priority.BATCH), _live(2, Priority.INTERACTIVE)]
    live.append(_live(3, Priority.STANDARD))
    aging = Aging(8.0)
    assert aging.new_elders(live, 0.0) == []
    live[3].computed = 1  # moves
    assert aging.new_elders(live, 8.0) == [live[0]]
    live[0].rank = ELDER
    assert aging.new_elders(live, 16.0) == [live[3]]


def test_a_class_has_one_elder_at_a_time() -> None:
    live = [_live(number, Priority.BATCH) for number in range(2)]
    aging = Aging(8.0)
    promoted: list[Sequence] = []
    for now in range(0, 40, 2):
        found = aging.new_elders(live, float(now))
        for sequence in found:
            sequence.rank = ELDER
        promoted += found
    assert promoted == live[:1]
    live[0].finished = True
    found = [aging.new_elders(live[1:], float(now)) for now in range(40, 60, 2)]
    assert [live[1]] in found


def _under_siege(lower: Priority, count: int, on_step: Callable[[DrivenScheduler], None]) -> DrivenScheduler:
    """One row, which interactive streams of 7 steps would keep for ever, and `count` streams of a lower class."""
    driven = DrivenScheduler(max_num_seqs=1, max_num_batched_tokens=16, aging=AGING)
    for number in range(count):
        driven.add(f"lower-{number}", (number, 1, 2), max_tokens=5, priority=lower)
    arrivals = 0
    while any(driven.reason(f"lower-{number}") is None for number in range(count)):
        if driven.scheduler.stats.waiting_interactive < 2:
            driven.add(f"i-{arrivals}", (3, arrivals % 8), max_tokens=6, priority=Priority.INTERACTIVE)
            arrivals += 1
        driven.step()
        on_step(driven)
    return driven


def test_a_lower_class_advances_within_its_bound_under_endless_interactive_work() -> None:
    for lower in (Priority.STANDARD, Priority.BATCH):
        driven = _under_siege(lower, 3, lambda _: None)
        # Each stands still for 1.5 times the aging at most, waits for the row (8 steps), and runs (7 steps).
        assert driven.now <= 3 * (1.5 * AGING + 8 + 7)
        assert driven.now > AGING


def test_an_elder_of_batch_work_is_not_put_off_again() -> None:
    preemptions: list[int] = []
    _under_siege(Priority.BATCH, 1, lambda driven: preemptions.append(driven.scheduler.stats.preemptions))
    assert preemptions[-1] == 0
