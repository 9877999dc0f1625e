"""A stream ends when its time is up, and one that cannot end in time does not begin."""

import math
from typing import Any

import pytest

from serving.engine.policies.deadline import Deadlines, is_hopeless
from serving.engine.request import FinishReason, SamplingParams
from serving.engine.sequence import Sequence
from serving.engine.step_cost import StepCost
from tests.fakes.paged_device import VOCAB_SIZE, expected_stream
from tests.serving.engine.driven_scheduler import DrivenScheduler
from tests.serving.engine.live_sequences import sequence


def _prompt(length: int, first: int = 1) -> tuple[int, ...]:
    return tuple((first + i * i) % VOCAB_SIZE for i in range(length))


def _with_deadline(expires_at: float, number: int = 0, **sampling: Any) -> Sequence:
    found = sequence((1, 2, 3, 4) * 4, SamplingParams(**sampling), arrival_number=number)
    found.expires_at = expires_at
    return found


def test_hopeless_is_what_the_best_rates_cannot_finish() -> None:
    cost = StepCost((8, 16))
    assert not is_hopeless(_with_deadline(0.0), 0, cost, now=0.0)  # nothing is known yet
    cost.observe(16, 1.6)  # 0.1 s a token of prompt
    cost.observe(8, 1.0)  # a step takes 1 s at least
    for expires_at, cached, hopeless in ((1.61, 0, False), (1.59, 0, True), (1.59, 4, False)):
        assert is_hopeless(_with_deadline(expires_at), cached, cost, now=0.0) is hopeless
    assert is_hopeless(_with_deadline(4.0, min_tokens=4, max_tokens=4), 0, cost, now=0.0)
    assert not is_hopeless(_with_deadline(4.7, min_tokens=4, max_tokens=4), 0, cost, now=0.0)
    assert not is_hopeless(_with_deadline(math.inf), 0, cost, now=1e9)


def test_the_expired_come_out_once_and_those_that_ended_never() -> None:
    deadlines = Deadlines()
    first, ended, last = (_with_deadline(float(number), number) for number in (1, 2, 3))
    for found in (last, ended, first):
        deadlines.add(found, num_live=3)
    ended.finished = True
    assert deadlines.expired(0.5) == []
    assert deadlines.expired(2.0) == [first]
    assert deadlines.expired(9.0) == [last]


def test_ended_streams_with_distant_deadlines_do_not_pile_up() -> None:
    deadlines = Deadlines()
    for number in range(10_000):
        found = _with_deadline(1e9, number)
        deadlines.add(found, num_live=1)
        found.finished = True
    assert len(deadlines) < 100


@pytest.mark.parametrize("overlap", [True, False])
def test_a_running_stream_ends_at_its_deadline_and_its_pages_are_free_at_once(overlap: bool) -> None:
    driven = DrivenScheduler(max_num_seqs=2, overlap=overlap)
    late = driven.add("late", _prompt(5), max_tokens=40, deadline=5.5)
    other = driven.add("other", _prompt(4, first=2), max_tokens=20)
    while driven.reason("late") is None:
        assert driven.now < 6
        driven.step()
    assert driven.now == 6
    assert driven.reason("late") is FinishReason.DEADLINE
    delivered = driven.tokens("late")
    assert 0 < len(delivered) <= 5
    assert delivered == expected_stream(late, 64).token_ids[: len(delivered)]
    assert driven.scheduler.stats.running == 1
    driven.finish()
    assert driven.tokens("late") == delivered  # what was in flight is dropped
    assert driven.tokens("other") == expected_stream(other, 64).token_ids
    assert (driven.scheduler.stats.deadline_stops, driven.scheduler.stats.deadline_drops) == (1, 0)


def test_a_waiting_stream_ends_at_its_deadline_with_nothing_computed() -> None:
    driven = DrivenScheduler(max_num_seqs=1)
    driven.add("runs", _prompt(5), max_tokens=20)
    driven.step()
    driven.add("waits", _prompt(6, first=2), max_tokens=20, deadline=3.0)
    driven.finish()
    (event,) = driven.events["waits"]
    assert (event.finish_reason, event.token_ids) == (FinishReason.DEADLINE, ())
    assert (driven.scheduler.stats.deadline_stops, driven.scheduler.stats.deadline_drops) == (0, 1)


def test_what_cannot_be_met_at_the_measured_rate_is_dropped_before_prefill_and_holds_nobody_up() -> None:
    driven = DrivenScheduler(max_num_batched_tokens=16, max_num_seqs=2, step_seconds=1.0, overlap=False)
    driven.add("first", _prompt(16), max_tokens=2)
    driven.finish()
    computed = driven.device.tokens_computed
    driven.add("hopeless", _prompt(50, first=2), max_tokens=2, deadline=2.5)  # needs more than 3 s
    driven.add("possible", _prompt(16, first=3), max_tokens=2, deadline=2.5)
    driven.step()
    assert driven.reason("hopeless") is FinishReason.DEADLINE
    driven.finish()
    assert driven.reason("possible") is FinishReason.LENGTH
    assert driven.device.tokens_computed == computed + 17
    assert driven.scheduler.stats.deadline_drops == 1
