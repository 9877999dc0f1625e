"""Classes go in their order, and batch work only where nobody else wants to."""

import pytest

from serving.engine.policies.order import ELDER, RANKS, precedence
from serving.engine.request import Priority
from tests.fakes.paged_device import VOCAB_SIZE, expected_stream
from tests.serving.engine.driven_scheduler import DrivenScheduler, ranges, spans
from tests.serving.engine.live_sequences import sequence


def _prompt(length: int, first: int = 1) -> tuple[int, ...]:
    return tuple((first + i * i) % VOCAB_SIZE for i in range(length))


def test_precedence_is_by_rank_then_by_arrival() -> None:
    elder, interactive, batch = (sequence(arrival_number=number) for number in (9, 5, 1))
    elder.rank, interactive.rank, batch.rank = ELDER, RANKS[Priority.INTERACTIVE], RANKS[Priority.BATCH]
    later = sequence(arrival_number=6)
    later.rank = interactive.rank
    assert sorted([batch, later, elder, interactive], key=precedence) == [elder, interactive, later, batch]


def test_the_queue_is_served_by_class() -> None:
    driven = DrivenScheduler(max_num_seqs=1)
    for priority in reversed(Priority):
        driven.add(priority.value, _prompt(3), max_tokens=2, priority=priority, salt=priority.value)
    driven.finish()
    waits = [driven.events[priority.value][0].queue_seconds for priority in Priority]
    assert waits == sorted(wait for wait in waits if wait is not None)


@pytest.mark.parametrize("priority", [Priority.INTERACTIVE, Priority.STANDARD])
def test_batch_work_gives_up_its_row_in_the_step_in_which_another_comes(priority: Priority) -> None:
    driven = DrivenScheduler(max_num_seqs=1)
    batch = driven.add("batch", _prompt(5), max_tokens=20, priority=Priority.BATCH)
    for _ in range(4):
        driven.step()
    driven.add("other", _prompt(6, first=2), max_tokens=3, priority=priority)
    assert spans(driven.step()) == [(0, 6)]
    driven.finish()
    assert driven.scheduler.stats.preemptions == 1
    assert driven.tokens("batch") == expected_stream(batch, 64).token_ids


def test_no_other_class_gives_up_its_row() -> None:
    driven = DrivenScheduler(max_num_seqs=1)
    driven.add("standard", _prompt(5), max_tokens=6)
    driven.step()
    driven.add("interactive", _prompt(6, first=2), max_tokens=3, priority=Priority.INTERACTIVE)
    driven.finish()
    assert driven.scheduler.stats.preemptions == 0


def test_batch_work_gives_up_its_pages_but_only_as_many_as_are_needed() -> None:
    driven = DrivenScheduler(num_pages=12, page_size=4, max_num_seqs=4, max_num_batched_tokens=64, max_model_len=40)
    for name in ("big", "small"):
        driven.add(name, _prompt(20 if name == "big" else 6, len(name)), max_tokens=4, priority=Priority.BATCH)
    driven.step()
    driven.add("standard", _prompt(24, first=2), max_tokens=4)
    plan = driven.step()
    assert [r.length for r in ranges(plan) if r.start == 0] == [24]
    assert driven.scheduler.stats.preemptions == 1
    driven.finish()


def test_batch_work_gives_up_pages_that_only_batch_work_shares() -> None:
    driven = DrivenScheduler(num_pages=16, page_size=4, max_num_batched_tokens=64)
    for name in ("one", "same"):
        driven.add(name, _prompt(40), max_tokens=20, priority=Priority.BATCH)
    for _ in range(4):
        driven.step()
    driven.add("interactive", _prompt(36, first=2), max_tokens=4, priority=Priority.INTERACTIVE)
    assert (0, 36) in spans(driven.step())
    driven.finish()


def test_batch_work_is_not_preempted_where_its_pages_are_those_that_the_other_shares() -> None:
    driven = DrivenScheduler(num_pages=16, page_size=4, max_num_batched_tokens=64)
    driven.add("standard", _prompt(12, first=2), max_tokens=30)
    driven.add("batch", _prompt(28), max_tokens=20, priority=Priority.BATCH)
    for _ in range(4):
        driven.step()
    driven.add("interactive", (*_prompt(28), *_prompt(32, first=3)), max_tokens=2, priority=Priority.INTERACTIVE)
    for _ in range(3):
        driven.step()
    assert driven.scheduler.stats.preemptions == 0, "what it gave up was not enough"
    driven.finish()


def test_batch_work_is_left_out_of_a_step_whose_tokens_others_need() -> None:
    driven = DrivenScheduler(max_num_batched_tokens=8)
    batch = driven.add("batch", _prompt(5), max_tokens=12, priority=Priority.BATCH)
    driven.step()
    driven.add("standard", _prompt(20, first=2), max_tokens=3)
    assert [spans(driven.step()) for _ in range(3)] == [[(0, 8)], [(8, 8)], [(5, 1), (16, 4)]]
    driven.finish()
    assert driven.scheduler.stats.preemptions == 0
    assert driven.tokens("batch") == expected_stream(batch, 64).token_ids


def test_batch_work_fills_what_the_others_leave() -> None:
    driven = DrivenScheduler(max_num_seqs=4, max_num_batched_tokens=16)
    driven.add("standard", _prompt(4), max_tokens=8)
    for number in range(3):
        driven.add(f"batch-{number}", _prompt(4, first=2 + number), max_tokens=8, priority=Priority.BATCH)
    assert spans(driven.step()) == [(0, 4)] * 4
    driven.finish()


def test_while_another_waits_for_pages_no_batch_work_takes_them() -> None:
    driven = DrivenScheduler(num_pages=8, page_size=4, max_model_len=32, max_num_batched_tokens=32)
    driven.add("first", _prompt(14), max_tokens=6)
    driven.step()
    driven.add("next", _prompt(18, first=2), max_tokens=2)
    driven.add("batch", _prompt(2, first=3), max_tokens=2, priority=Priority.BATCH)
    for _ in range(4):
        assert driven.scheduler.stats.free_pages >= 3
        assert len(spans(driven.step())) == 1
    driven.finish()
    after, batch = (driven.events[name][0].queue_seconds for name in ("next", "batch"))
    assert after is not None
    assert batch is not None
    assert batch >= after
