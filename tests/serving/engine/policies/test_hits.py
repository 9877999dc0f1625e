"""A cached prompt goes before it is evicted, and nobody is passed for ever."""

from serving.engine.policies.hits import MAX_PASSED, WINDOW, preferred
from tests.fakes.paged_device import VOCAB_SIZE
from tests.serving.engine.driven_scheduler import DrivenScheduler
from tests.serving.engine.live_sequences import sequence

PROMPT = (1, 2, 3, 4, 5, 6, 7, 0, 1)  # two whole pages of four may come from the cache


def test_the_first_with_half_of_its_pages_cached_goes_first() -> None:
    window = [sequence(PROMPT, arrival_number=number) for number in range(3)]
    for cached, chosen in (((0, 0, 0), 0), ((0, 1, 2), 1), ((1, 2, 2), 0), ((0, 0, 1), 2)):
        assert preferred(window, lambda s, cached=cached: cached[s.arrival_number]) is window[chosen]


def test_one_that_was_passed_often_enough_goes_first() -> None:
    window = [sequence(PROMPT, arrival_number=number) for number in range(2)]
    window[0].passed = MAX_PASSED - 1
    assert preferred(window, lambda s: 2 * s.arrival_number) is window[1]
    window[0].passed = MAX_PASSED
    assert preferred(window, lambda s: 2 * s.arrival_number) is window[0]


def test_a_short_prompt_of_no_whole_page_is_no_hit() -> None:
    window = [sequence((1, 2), arrival_number=number) for number in range(2)]
    assert preferred(window, lambda s: 0) is window[0]


def _cold(number: int) -> tuple[int, ...]:
    """Prompts that share no page."""
    return tuple((number // VOCAB_SIZE**i) % VOCAB_SIZE for i in range(9))


def test_whose_prompt_is_cached_is_admitted_before_those_who_came_earlier_at_most_so_many_times() -> None:
    driven = DrivenScheduler(max_num_seqs=1, max_num_batched_tokens=16, max_waiting=200)
    warm = (7, *PROMPT[1:])
    driven.add("warm", warm, max_tokens=1)
    driven.finish()
    driven.add("cold", _cold(1), max_tokens=1)
    for number in range(2 * MAX_PASSED):
        driven.add(f"hit-{number}", (*warm, number % VOCAB_SIZE, number // VOCAB_SIZE), max_tokens=1)
    driven.finish()
    first = {name: driven.events[name][0].queue_seconds or 0.0 for name in driven.asked}
    before = [name for name in first if name.startswith("hit") and first[name] < first["cold"]]
    assert len(before) == MAX_PASSED
    assert driven.events["hit-0"][0].cached_tokens == 8


def test_no_more_than_a_window_is_looked_through() -> None:
    driven = DrivenScheduler(max_num_seqs=1, max_num_batched_tokens=16, max_waiting=200)
    driven.add("warm", PROMPT, max_tokens=1)
    driven.finish()
    for number in range(1, WINDOW + 1):
        driven.add(f"cold-{number}", _cold(number), max_tokens=1)
    driven.add("hit", (*PROMPT, 5), max_tokens=1)
    driven.step()
    driven.step()
    assert [name for name in driven.asked if driven.events[name]] == ["warm", "cold-1"]
    driven.finish()


def test_another_tenant_is_not_passed() -> None:
    driven = DrivenScheduler(max_num_seqs=1, max_num_batched_tokens=16)
    driven.add("warm", PROMPT, max_tokens=1, tenant="a")
    driven.finish()
    driven.add("cold", _cold(1), max_tokens=1, tenant="b")
    driven.add("hit", (*PROMPT, 5), max_tokens=1, tenant="a")
    driven.finish()
    waits = [driven.events[name][0].queue_seconds or 0.0 for name in ("cold", "hit")]
    assert waits == sorted(waits)
