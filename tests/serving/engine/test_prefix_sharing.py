"""A prefix is computed once, whoever needs it and whenever they come."""

import pytest

from serving.engine.request import FinishReason
from tests.fakes.paged_device import VOCAB_SIZE, expected_stream
from tests.serving.engine.driven_scheduler import DrivenScheduler, spans


def _prefix(length: int, first: int = 1) -> tuple[int, ...]:
    return tuple((first + i * i) % VOCAB_SIZE for i in range(length))


@pytest.mark.parametrize("overlap", [True, False])
def test_thirty_two_users_who_arrive_together_compute_their_common_prefix_once(overlap: bool) -> None:
    driven = DrivenScheduler(
        num_pages=256, page_size=16, max_num_seqs=32, max_num_batched_tokens=256, max_model_len=1100, overlap=overlap
    )
    prefix = _prefix(1000)
    requests = [driven.add(str(i), (*prefix, i % 8, i // 8, 5), max_tokens=4) for i in range(32)]
    driven.finish()
    # 62 pages of 16 are whole; each user computes 11 tokens behind them and 3 more in decode, and at most a zombie.
    assert driven.device.tokens_computed <= 992 + 32 * (11 + 3)
    assert [driven.events[str(i)][0].cached_tokens for i in range(32)] == [0] + [992] * 31
    assert all(driven.tokens(r.request_id) == expected_stream(r, 1100).token_ids for r in requests)


def test_a_page_is_not_read_by_the_plan_that_computes_it() -> None:
    driven = DrivenScheduler(page_size=4, max_num_batched_tokens=64)
    driven.add("a", _prefix(9), max_tokens=3)
    driven.add("b", _prefix(9), max_tokens=3)
    assert spans(driven.plan()) == [(0, 9)]
    assert spans(driven.plan()) == [(9, 1), (8, 1)]
    driven.finish()


def test_those_who_wait_for_a_prefix_do_not_hold_up_others() -> None:
    driven = DrivenScheduler(page_size=4, max_num_batched_tokens=64)
    driven.add("a", _prefix(9), max_tokens=3)
    driven.add("b", _prefix(9), max_tokens=3)
    driven.add("c", _prefix(9, first=2), max_tokens=3)
    assert spans(driven.plan()) == [(0, 9), (0, 9)]
    driven.finish()


def test_when_the_one_who_computes_is_aborted_those_who_wait_go_on_by_themselves() -> None:
    driven = DrivenScheduler(page_size=4, max_num_batched_tokens=8)
    driven.add("a", _prefix(30), max_tokens=3)
    driven.add("b", _prefix(30), max_tokens=3)
    driven.step()
    driven.step()
    driven.scheduler.abort("a")
    assert spans(driven.step()) == [(16, 8)]  # behind the two chunks that "a" has left in the cache
    driven.finish()
    assert driven.events["b"][0].cached_tokens == 16


def test_when_the_one_who_computes_is_preempted_nobody_waits_for_it() -> None:
    driven = DrivenScheduler(page_size=2, num_pages=8, max_num_batched_tokens=2, max_model_len=16, max_num_seqs=2)
    driven.add("old", (7,), max_tokens=14)
    driven.add("computes", _prefix(9), max_tokens=2)
    driven.add("waits", _prefix(9), max_tokens=2)
    admitted = 0.0
    while driven.scheduler.stats.preemptions == 0:
        plan = driven.step()
        if plan is not None and any(len(a.prompt_token_ids) == 9 for a in plan.admissions):
            admitted = driven.now
    assert not driven.events["computes"]  # it was preempted inside its prompt
    driven.finish()
    assert driven.events["computes"][0].queue_seconds == admitted  # the first time counts
    assert all(driven.events[name][-1].finish_reason is FinishReason.LENGTH for name in ("old", "computes", "waits"))


@pytest.mark.parametrize(("max_share_waits", "cached"), [(0, 0), (1, 8), (2, 16)])
def test_waiting_for_the_pages_of_others_is_bounded(max_share_waits: int, cached: int) -> None:
    driven = DrivenScheduler(page_size=4, max_num_batched_tokens=64, max_share_waits=max_share_waits)
    # The first computes two pages, the second waits for them and computes two more, the third could wait for both.
    for name, length in (("a", 9), ("b", 17), ("c", 18)):
        driven.add(name, _prefix(length), max_tokens=2)
    driven.finish()
    assert driven.events["c"][0].cached_tokens == cached


def test_a_prompt_that_is_cached_whole_still_computes_its_last_token() -> None:
    driven = DrivenScheduler(page_size=4)
    for name in ("a", "b"):
        driven.add(name, _prefix(8), max_tokens=2)
        driven.finish()
    assert driven.events["b"][0].cached_tokens == 4
    assert driven.tokens("a") == driven.tokens("b")


def test_the_next_turn_of_a_conversation_finds_the_answer_cached_too() -> None:
    driven = DrivenScheduler(page_size=4)
    driven.add("a", _prefix(6), max_tokens=11)
    driven.finish()
    driven.add("b", (*_prefix(6), *driven.tokens("a"), 1, 2, 3), max_tokens=2)
    driven.finish()
    assert driven.events["b"][0].cached_tokens == 16  # of 17, the last of which was sampled and never computed


def test_other_salts_share_nothing() -> None:
    driven = DrivenScheduler(page_size=4)
    for name, salt in (("a", "one"), ("b", "two"), ("c", "one")):
        driven.add(name, _prefix(9), max_tokens=2, salt=salt)
        driven.finish()
    assert [driven.events[name][0].cached_tokens for name in "abc"] == [0, 0, 8]


def test_without_prefix_caching_nothing_is_shared() -> None:
    driven = DrivenScheduler(page_size=4, prefix_caching=False)
    for name in ("a", "b"):
        driven.add(name, _prefix(9), max_tokens=2)
        driven.finish()
    assert driven.events["b"][0].cached_tokens == 0


def test_prompt_logprobs_compute_every_position_and_leave_their_pages_to_others() -> None:
    driven = DrivenScheduler(page_size=4)
    driven.add("a", _prefix(9), max_tokens=2)
    driven.finish()
    request = driven.add("b", _prefix(9), max_tokens=2, prompt_logprobs=0)
    driven.finish()
    assert driven.events["b"][0].cached_tokens == 0
    assert driven.events["b"][0].prompt_logprobs == expected_stream(request, 64).prompt_logprobs
    fresh = _prefix(9, first=3)
    driven.add("c", fresh, max_tokens=2, prompt_logprobs=0)
    driven.finish()
    driven.add("d", fresh, max_tokens=2)
    driven.finish()
    assert driven.events["d"][0].cached_tokens == 8


def test_cached_pages_are_evicted_when_pages_run_out_and_what_is_read_stays_right() -> None:
    driven = DrivenScheduler(page_size=4, num_pages=4, max_model_len=16)
    for turn in range(12):
        request = driven.add(str(turn), _prefix(9, first=turn % 3), max_tokens=4)
        driven.finish()
        assert driven.tokens(str(turn)) == expected_stream(request, 16).token_ids


def test_two_who_computed_the_same_page_keep_their_own_and_the_cache_keeps_the_first() -> None:
    driven = DrivenScheduler(page_size=4, max_share_waits=0, max_num_batched_tokens=64)
    driven.add("a", _prefix(9), max_tokens=3)
    driven.add("b", _prefix(9), max_tokens=3)
    assert spans(driven.step()) == [(0, 9), (0, 9)]
    driven.finish()
    driven.add("c", _prefix(9), max_tokens=3)
    driven.finish()
    assert driven.events["c"][0].cached_tokens == 8
