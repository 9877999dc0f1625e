"""What the scheduler promises, one promise a test. Every plan here runs on a device that checks it."""

import pytest

from serving.engine.plan import RangeResult, StepResult
from serving.engine.request import FinishReason, GenerateRequest, SamplingParams
from serving.errors import ContextLengthError, OverloadedError, RequestError
from tests.fakes.paged_device import VOCAB_SIZE, expected_stream
from tests.serving.engine.driven_scheduler import DrivenScheduler, ranges, spans


def _prompt(length: int, first: int = 1) -> tuple[int, ...]:
    return tuple((first + i * i) % VOCAB_SIZE for i in range(length))


def test_a_prompt_longer_than_the_budget_is_cut_anywhere_and_samples_only_at_its_end() -> None:
    driven = DrivenScheduler(max_num_batched_tokens=7, max_num_seqs=1)
    driven.add("a", _prompt(16), max_tokens=2)
    plans = [driven.step() for _ in range(4)]
    assert [spans(plan) for plan in plans] == [[(0, 7)], [(7, 7)], [(14, 2)], [(16, 1)]]
    assert [ranges(plan)[0].samples for plan in plans] == [False, False, True, True]


def test_a_chunk_that_ends_exactly_at_the_end_of_the_prompt_samples() -> None:
    driven = DrivenScheduler(max_num_batched_tokens=8)
    driven.add("a", _prompt(16), max_tokens=1)
    assert [ranges(driven.step())[0].samples for _ in range(2)] == [False, True]


def test_running_streams_get_a_token_in_every_step_and_prefill_gets_what_is_left() -> None:
    driven = DrivenScheduler(max_num_batched_tokens=8)
    driven.add("old", _prompt(4), max_tokens=20)
    driven.step()
    driven.add("new", _prompt(20, first=2), max_tokens=5)
    for start in (0, 7, 14):
        plan = driven.step()
        assert plan is not None
        assert plan.num_decode == 1
        assert plan.ranges[0].length == 1
        assert plan.ranges[1].start == start
        assert plan.num_tokens == (8 if start < 14 else 7)


def test_prefill_is_first_come_first_served() -> None:
    driven = DrivenScheduler(max_num_batched_tokens=8, prefix_caching=False)
    for name in ("a", "b", "c"):
        driven.add(name, _prompt(6), max_tokens=3)
    assert spans(driven.step()) == [(0, 6), (0, 2)]
    assert spans(driven.step()) == [(6, 1), (2, 4), (0, 3)]


def test_a_token_still_on_the_device_is_planned_without_its_id() -> None:
    driven = DrivenScheduler()
    driven.add("a", (1, 2, 3), max_tokens=8)
    driven.plan()
    planned = ranges(driven.plan())[0]
    assert (planned.start, planned.length, planned.token_ids, planned.num_output) == (3, 1, (), 1)


def test_a_token_known_to_the_host_is_named() -> None:
    driven = DrivenScheduler(overlap=False)
    driven.add("a", (1, 2, 3), max_tokens=8)
    driven.step()
    planned = ranges(driven.step())[0]
    assert planned.token_ids == driven.tokens("a")[:1]


def test_no_third_plan_is_made_while_two_are_in_flight() -> None:
    driven = DrivenScheduler()
    driven.add("a", (1, 2, 3), max_tokens=8)
    driven.plan()
    driven.plan()
    with pytest.raises(RuntimeError, match="two steps are in flight"):
        driven.plan()


@pytest.mark.parametrize("overlap", [True, False])
def test_streams_get_the_same_tokens_with_and_without_a_step_in_flight(overlap: bool) -> None:
    driven = DrivenScheduler(overlap=overlap, max_num_seqs=3)
    requests = [
        driven.add(str(i), _prompt(3 + 2 * i, first=i), max_tokens=4 + i, eos_token_ids=(0,), stop_token_ids=(1,))
        for i in range(7)
    ]
    driven.finish()
    for request in requests:
        expected = expected_stream(request, 64)
        last = driven.events[request.request_id][-1]
        assert driven.tokens(request.request_id) == expected.token_ids
        assert (last.finish_reason, last.stop_token_id) == (expected.finish_reason, expected.stop_token_id)


def _prompt_that_stops_at(length: int) -> tuple[int, ...]:
    """A prompt whose stream ends with token 0 where prompt and output together have `length` tokens."""
    sampling = SamplingParams(max_tokens=60, eos_token_ids=(0,))
    for first in range(VOCAB_SIZE):
        for num_prompt in range(1, length - 1):
            prompt = _prompt(num_prompt, first)
            request = GenerateRequest(request_id="search", prompt_token_ids=prompt, sampling=sampling)
            if num_prompt + len(expected_stream(request, 64).token_ids) == length:
                return prompt
    raise AssertionError("no prompt stops there")


def test_the_range_planned_before_the_end_was_known_is_dropped() -> None:
    driven = DrivenScheduler()
    driven.add("a", _prompt_that_stops_at(11), max_tokens=60, eos_token_ids=(0,))
    driven.plan()
    while not driven.events["a"] or driven.events["a"][-1].finish_reason is None:
        driven.plan()
        driven.commit()
    assert len(driven.in_flight) == 1  # the zombie
    assert driven.scheduler.stats.used_pages == 0
    assert driven.commit() == []
    assert driven.events["a"][-1].token_ids == (0,)


def test_a_page_that_a_zombie_completes_is_shared_with_what_its_digest_says() -> None:
    driven = DrivenScheduler(page_size=4, num_pages=4, max_model_len=16)
    prompt = _prompt_that_stops_at(8)
    driven.add("a", prompt, max_tokens=9, eos_token_ids=(0,))
    driven.finish()
    driven.add("b", (*prompt, *driven.tokens("a"), 3), max_tokens=2)
    driven.finish()
    assert driven.events["b"][0].cached_tokens == 8


def test_pages_of_an_ended_stream_are_given_away_while_its_zombie_still_writes_them() -> None:
    driven = DrivenScheduler(page_size=4, num_pages=3, max_model_len=12, max_num_seqs=2)
    driven.add("a", _prompt_that_stops_at(11), max_tokens=12, eos_token_ids=(0,))
    driven.add("b", _prompt(11, first=5), max_tokens=1)
    while not driven.events["b"]:
        driven.step()
        if driven.events["a"] and driven.events["a"][-1].finish_reason:
            break
    assert len(driven.in_flight) == 1
    plan = driven.plan()
    assert spans(plan) == [(0, 11)]
    driven.finish()
    assert driven.tokens("b")


@pytest.mark.parametrize("limits", [{"max_tokens": 3}, {"max_tokens": 60, "max_model_len": 6}])
def test_a_stream_known_to_end_with_the_token_in_flight_is_not_planned_again(limits: dict[str, int]) -> None:
    driven = DrivenScheduler(max_model_len=limits.get("max_model_len", 64))
    driven.add("a", (1, 2, 3), max_tokens=limits["max_tokens"])
    assert [spans(driven.step()) for _ in range(3)] == [[(0, 3)], [(3, 1)], [(4, 1)]]
    assert driven.step() is None
    assert len(driven.tokens("a")) == 3
    assert driven.events["a"][-1].finish_reason is FinishReason.LENGTH


def test_the_first_event_and_only_that_says_what_was_cached_and_how_long_it_queued() -> None:
    driven = DrivenScheduler()
    driven.add("a", _prompt(9), max_tokens=3)
    driven.now = 4.5
    driven.finish()
    first, *rest = driven.events["a"]
    assert (first.cached_tokens, first.queue_seconds) == (0, 5.5)
    assert all(event.cached_tokens is event.queue_seconds is None for event in rest)
    assert [event.finish_reason for event in driven.events["a"]] == [None, None, FinishReason.LENGTH]


def test_logprobs_come_with_their_tokens() -> None:
    driven = DrivenScheduler()
    driven.add("a", (1, 2), max_tokens=3, logprobs=0)
    driven.finish()
    assert [event.logprobs[0].token_id for event in driven.events["a"]] == list(driven.tokens("a"))


def test_neither_eos_nor_stop_tokens_end_a_stream_below_min_tokens() -> None:
    driven = DrivenScheduler()
    everything = tuple(range(1, VOCAB_SIZE))
    request = driven.add("a", (1, 2), max_tokens=9, min_tokens=4, eos_token_ids=(), stop_token_ids=everything)
    driven.finish()
    assert driven.tokens("a") == expected_stream(request, 64).token_ids
    assert len(driven.tokens("a")) >= 4


def test_an_aborted_stream_frees_its_pages_before_the_next_plan() -> None:
    driven = DrivenScheduler(num_pages=3, max_model_len=12)
    driven.add("a", _prompt(9), max_tokens=3)
    driven.add("b", _prompt(9, first=2), max_tokens=3)
    driven.step()
    driven.step()
    event = driven.scheduler.abort("a")
    assert event is not None
    assert event.finish_reason is FinishReason.ABORT
    assert spans(driven.plan()) == [(0, 9)]
    driven.finish()
    assert driven.events["a"][1:] == []
    assert len(driven.tokens("b")) == 3


def test_a_waiting_stream_can_be_aborted_and_an_unknown_one_is_nobody() -> None:
    driven = DrivenScheduler()
    driven.add("a", (1, 2), max_tokens=3)
    event = driven.scheduler.abort("a")
    assert event is not None
    assert (event.finish_reason, event.token_ids, event.queue_seconds) == (FinishReason.ABORT, (), None)
    assert driven.scheduler.abort("a") is None
    assert driven.scheduler.abort("b") is None
    assert driven.plan() is None


def test_a_stream_that_the_engine_fails_on_ends_with_the_error() -> None:
    driven = DrivenScheduler()
    driven.add("a", (1, 2), max_tokens=3)
    event = driven.scheduler.abort("a", error="its logits are not numbers")
    assert event is not None
    assert (event.finish_reason, event.error) == (FinishReason.ERROR, "its logits are not numbers")


def test_a_request_id_and_a_row_used_again_while_their_last_owner_is_in_flight_are_not_confused() -> None:
    driven = DrivenScheduler(max_num_seqs=1)
    driven.add("a", (1, 2, 3), max_tokens=9)
    driven.step()
    driven.step()
    driven.scheduler.abort("a")
    driven.events.clear()
    request = driven.add("a", (4, 5, 6, 7), max_tokens=5)
    driven.finish()
    assert driven.tokens("a") == expected_stream(request, 64).token_ids


def test_the_request_id_of_a_live_stream_is_refused() -> None:
    driven = DrivenScheduler()
    driven.add("a", (1, 2, 3), max_tokens=9)
    with pytest.raises(RequestError, match="belongs to a live stream"):
        driven.add("a", (1, 2, 3), max_tokens=9)
    driven.finish()
    driven.add("a", (1, 2, 3), max_tokens=9)


def test_what_can_never_run_is_refused_and_leaves_nothing_behind() -> None:
    driven = DrivenScheduler(num_pages=4, page_size=4, max_model_len=64)
    with pytest.raises(RequestError, match="no tokens"):
        driven.add("empty", (), max_tokens=1)
    with pytest.raises(ContextLengthError, match="window"):
        driven.add("long", _prompt(64), max_tokens=1)
    with pytest.raises(ContextLengthError, match="pages"):
        driven.add("large", _prompt(8), max_tokens=10)
    assert not driven.scheduler.has_requests


def test_a_full_queue_refuses_with_the_time_in_which_half_of_it_drains() -> None:
    driven = DrivenScheduler(max_num_seqs=1, max_waiting=10)
    for i in range(10):
        driven.add(str(i), (1, 2), max_tokens=1)
    while driven.scheduler.stats.waiting > 5:
        driven.step()  # one leaves in two seconds
    assert abs(_retry_after(driven) - 5 * 2.0) < 1e-6
    driven.finish()


@pytest.mark.parametrize("abort", [False, True])
def test_an_idle_hour_does_not_slow_what_a_full_queue_tells(abort: bool) -> None:
    driven = DrivenScheduler(max_num_seqs=1, max_waiting=10)
    for i in range(4):
        driven.add(str(i), (1, 2), max_tokens=1)
    for _ in range(3):
        driven.step()
    if abort:
        for name in driven.asked:
            driven.scheduler.abort(name)
    driven.finish()
    driven.now += 3600.0
    driven.add("after", (1, 2), max_tokens=1)
    driven.finish()
    assert abs(_retry_after(driven) - 5 * 2.0) < 1e-6


def _retry_after(driven: DrivenScheduler) -> float:
    """What one too many is told."""
    for i in range(10 - driven.scheduler.stats.waiting):
        driven.add(f"waiting-{i}", (1, 2), max_tokens=1)
    with pytest.raises(OverloadedError) as refusal:
        driven.add("one too many", (1, 2), max_tokens=1)
    return refusal.value.retry_after


def test_no_more_streams_run_than_there_are_rows() -> None:
    driven = DrivenScheduler(max_num_seqs=2)
    for i in range(5):
        driven.add(str(i), (1, 2, i), max_tokens=4)
    while driven.scheduler.has_requests:
        plan = driven.step()
        assert plan is None or len(plan.ranges) <= 2
        assert driven.scheduler.stats.running <= 2


def test_a_newcomer_waits_until_there_is_a_page_to_grow_into_for_each_running_stream() -> None:
    driven = DrivenScheduler(num_pages=4, page_size=4, max_model_len=16)
    driven.add("a", _prompt(5), max_tokens=2)
    driven.add("b", _prompt(5, first=2), max_tokens=2)
    driven.step()
    assert driven.scheduler.stats.running == 1  # two pages are free, the newcomer needs two and "a" may need one
    driven.finish()
    assert driven.scheduler.stats.preemptions == 0


def test_the_pool_exhausted_the_newest_stream_is_preempted_and_ends_with_the_same_tokens() -> None:
    driven = DrivenScheduler(num_pages=6, page_size=4, max_model_len=24)
    requests = [driven.add(name, _prompt(3, first=i), max_tokens=15) for i, name in enumerate("ab")]
    admissions = []
    while driven.scheduler.has_requests:
        plan = driven.step()
        if plan is not None:
            admissions.extend(plan.admissions)
    assert driven.scheduler.stats.preemptions >= 1
    for request in requests:
        assert driven.tokens(request.request_id) == expected_stream(request, 24).token_ids
    assert [a.prompt_token_ids[0] for a in admissions[:3]] == [0, 1, 1]  # "a" is never a victim
    again = admissions[2]
    assert len(again.output_token_ids) > 0
    assert again.output_token_ids == driven.tokens("b")[: len(again.output_token_ids)]
    first_events = [event for event in driven.events["b"] if event.queue_seconds is not None]
    assert len(first_events) == 1


def test_a_preempted_stream_still_gets_the_token_that_was_in_flight() -> None:
    driven = DrivenScheduler(num_pages=4, page_size=4, max_model_len=16)
    driven.add("a", _prompt(3), max_tokens=12)
    driven.add("b", _prompt(3, first=2), max_tokens=12)
    while driven.scheduler.stats.preemptions == 0:
        driven.plan()
        if driven.scheduler.stats.preemptions == 0 and len(driven.in_flight) > 1:
            driven.commit()
    delivered = len(driven.tokens("b"))
    assert driven.scheduler.stats.waiting == 1
    driven.commit()
    assert len(driven.tokens("b")) == delivered + 1
    driven.finish()


def test_the_oldest_stream_advances_in_every_step_however_scarce_the_pages() -> None:
    driven = DrivenScheduler(num_pages=5, page_size=2, max_model_len=10, max_num_seqs=4, overlap=False)
    for i in range(4):
        driven.add(str(i), (1, i), max_tokens=8)
    for oldest in range(4):
        while not (driven.events[str(oldest)] and driven.events[str(oldest)][-1].finish_reason):
            before = len(driven.tokens(str(oldest)))
            driven.step()
            assert len(driven.tokens(str(oldest))) == before + 1
    assert driven.scheduler.stats.preemptions > 0


def test_a_stream_that_fills_the_whole_pool_finishes_alone_and_among_others() -> None:
    driven = DrivenScheduler(num_pages=4, page_size=2, max_model_len=9)
    for i in range(5):
        driven.add(str(i), (1, 2, i), max_tokens=6)
    driven.finish()
    assert all(len(driven.tokens(str(i))) == 6 for i in range(5))


def test_a_stream_continues_behind_the_tokens_that_were_delivered_before() -> None:
    whole = DrivenScheduler()
    whole.add("a", (1, 2, 3), max_tokens=9, min_tokens=5, stop_token_ids=(0,))
    whole.finish()
    delivered = whole.tokens("a")[:4]
    rest = DrivenScheduler()
    rest.add("a", (1, 2, 3), output=delivered, max_tokens=9, min_tokens=5, stop_token_ids=(0,))
    plan = rest.step()
    assert plan is not None
    assert plan.admissions[0].output_token_ids == delivered
    assert (plan.ranges[0].start, plan.ranges[0].length, plan.ranges[0].num_output) == (0, 7, 4)
    rest.finish()
    assert delivered + rest.tokens("a") == whole.tokens("a")
    assert rest.events["a"][-1].finish_reason is whole.events["a"][-1].finish_reason
    assert rest.events["a"][0].queue_seconds is not None


def test_prompt_logprobs_are_gathered_over_chunks_and_come_with_the_first_event() -> None:
    driven = DrivenScheduler(max_num_batched_tokens=5)
    request = driven.add("a", _prompt(12), max_tokens=3, prompt_logprobs=1)
    driven.finish()
    first, *rest = driven.events["a"]
    assert first.prompt_logprobs == expected_stream(request, 64).prompt_logprobs
    assert len(first.prompt_logprobs) == 11
    assert not any(event.prompt_logprobs for event in rest)


def test_scoring_runs_the_prompt_and_ends_without_a_token() -> None:
    driven = DrivenScheduler(max_num_batched_tokens=5)
    request = driven.add("a", _prompt(12), max_tokens=0, prompt_logprobs=0)
    driven.finish()
    (event,) = driven.events["a"]
    assert (event.token_ids, event.finish_reason) == ((), FinishReason.LENGTH)
    assert event.prompt_logprobs == expected_stream(request, 64).prompt_logprobs
    assert event.cached_tokens == 0


def test_a_stream_that_continues_does_not_score_its_prompt_again() -> None:
    driven = DrivenScheduler()
    driven.add("a", _prompt(6), output=(1, 2), max_tokens=4, prompt_logprobs=1)
    assert ranges(driven.step())[0].prompt_logprobs_from is None
    driven.finish()
    assert driven.events["a"][0].prompt_logprobs == ()


def test_a_commit_must_answer_the_oldest_plan_range_by_range() -> None:
    driven = DrivenScheduler()
    driven.add("a", (1, 2, 3), max_tokens=3)
    first, second = driven.plan(), driven.plan()
    assert first is not None
    assert second is not None
    with pytest.raises(ValueError, match="not the oldest"):
        driven.scheduler.commit(second, StepResult(ranges=(RangeResult(token_id=1),)))
    with pytest.raises(ValueError, match="1 ranges, its result 0"):
        driven.scheduler.commit(first, StepResult(ranges=()))
    with pytest.raises(ValueError, match="must have a token"):
        driven.scheduler.commit(first, StepResult(ranges=(RangeResult(token_id=None),)))
    driven.finish()  # the refusals changed nothing
    assert len(driven.tokens("a")) == 3


def test_rows_must_fit_the_token_budget() -> None:
    with pytest.raises(ValueError, match="max_num_seqs"):
        DrivenScheduler(max_num_seqs=5, max_num_batched_tokens=4)


def test_the_counters_count() -> None:
    driven = DrivenScheduler(page_size=4)
    driven.add("a", _prompt(9), max_tokens=2)
    driven.finish()
    driven.add("b", _prompt(9), max_tokens=3)
    driven.finish()
    stats = driven.scheduler.stats
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (18, 8)
    assert (stats.prompt_tokens, stats.generation_tokens) == (10, 5)
    assert (stats.steps, stats.preemptions) == (5, 0)
    assert (stats.running, stats.waiting, stats.used_pages, stats.free_pages) == (0, 0, 0, 64)
