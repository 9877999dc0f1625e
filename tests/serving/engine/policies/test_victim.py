"""Whoever is cheapest gives way."""

from serving.engine.policies.order import RANKS
from serving.engine.policies.victim import choose_victim, tokens_lost
from serving.engine.request import Priority
from serving.engine.sequence import Sequence
from tests.serving.engine.live_sequences import sequence


def _running(number: int, *, computed: int, priority: Priority = Priority.STANDARD) -> Sequence:
    found = sequence(arrival_number=number)
    found.rank = RANKS[priority]
    found.page_table = tuple(range(-(-computed // found.page_size)))
    found.computed = computed
    return found


def _all_own(found: Sequence) -> int:
    return len(found.page_table)


def test_of_equals_the_newest_gives_way_whatever_the_order_given() -> None:
    first, second, third = (_running(number, computed=4) for number in range(3))
    assert choose_victim([first, third, second], _all_own) is third
    assert choose_victim([second, first], _all_own) is second
    assert choose_victim([first], _all_own) is first


def test_the_one_with_the_least_to_compute_again_gives_way() -> None:
    long, short = _running(1, computed=40), _running(0, computed=8)
    assert choose_victim([long, short], _all_own) is short


def test_what_others_keep_in_the_cache_is_not_lost() -> None:
    shared, own = _running(0, computed=40), _running(1, computed=8)
    assert tokens_lost(shared, own_pages=1) == 4
    assert choose_victim([shared, own], lambda s: 1 if s is shared else len(s.page_table)) is shared


def test_a_lower_class_gives_way_however_much_it_loses() -> None:
    batch = _running(0, computed=40, priority=Priority.BATCH)
    standard, interactive = _running(1, computed=1), _running(2, computed=1, priority=Priority.INTERACTIVE)
    assert choose_victim([interactive, standard, batch], _all_own) is batch
    assert choose_victim([interactive, standard], _all_own) is standard


def test_one_that_would_free_no_page_is_the_last_resort() -> None:
    useless, costly = _running(0, computed=4), _running(1, computed=40)
    assert choose_victim([useless, costly], lambda s: 0 if s is useless else 10) is costly
