"""Pages are taken, shared, registered and evicted, and none is lost."""

import pytest

from serving.engine.block_pool import BlockPool


def _taken(pool: BlockPool, count: int) -> list[int]:
    pages = pool.take(count)
    assert pages is not None
    return pages


def test_take_gives_distinct_pages_until_there_are_none_and_then_all_or_nothing() -> None:
    pool = BlockPool(4, 16)
    first = _taken(pool, 3)
    assert pool.take(2) is None
    assert pool.num_available == 1
    second = _taken(pool, 1)
    assert sorted(first + second) == [0, 1, 2, 3]
    assert pool.take(1) is None
    pool.check([first, second])


def test_a_released_page_without_digest_can_be_taken_again() -> None:
    pool = BlockPool(1, 16)
    page = _taken(pool, 1)
    pool.release(page)
    assert pool.num_used == 0
    assert _taken(pool, 1) == page


def test_a_shared_page_is_available_only_when_its_last_holder_releases_it() -> None:
    pool = BlockPool(1, 16)
    pages = _taken(pool, 1)
    pool.register(pages[0], b"a")
    pool.share(pages)
    pool.release(pages)
    assert pool.num_available == 0
    pool.check([pages])
    pool.release(pages)
    assert pool.num_available == 1
    pool.check([])


def test_an_idle_page_is_found_and_shared_without_being_taken() -> None:
    pool = BlockPool(2, 16)
    pages = _taken(pool, 1)
    pool.register(pages[0], b"a")
    pool.release(pages)
    assert pool.lookup(b"a") == pages[0]
    assert pool.num_idle(pages) == 1
    pool.share(pages)
    assert pool.num_idle(pages) == 0
    assert pool.num_used == 1
    pool.check([pages])


def test_free_pages_are_taken_before_idle_ones() -> None:
    pool = BlockPool(2, 16)
    pages = _taken(pool, 1)
    pool.register(pages[0], b"a")
    pool.release(pages)
    _taken(pool, 1)
    assert pool.lookup(b"a") == pages[0]


def test_the_page_idle_for_longest_is_evicted_first_and_its_digest_is_forgotten() -> None:
    pool = BlockPool(2, 16)
    old, new = _taken(pool, 2)
    pool.register(old, b"old")
    pool.register(new, b"new")
    pool.release([old])
    pool.release([new])
    assert _taken(pool, 1) == [old]
    assert pool.lookup(b"old") is None
    assert pool.lookup(b"new") == new
    pool.check([[old]])


def test_sharing_an_idle_page_makes_it_the_newest() -> None:
    pool = BlockPool(2, 16)
    first, second = _taken(pool, 2)
    pool.register(first, b"first")
    pool.register(second, b"second")
    pool.release([first])
    pool.release([second])
    pool.share([first])
    pool.release([first])
    assert _taken(pool, 1) == [second]


def test_the_tail_of_a_page_table_is_evicted_before_its_head() -> None:
    pool = BlockPool(3, 16)
    table = _taken(pool, 3)
    for page, digest in zip(table, (b"0", b"1", b"2"), strict=True):
        pool.register(page, digest)
    pool.release(table)
    assert _taken(pool, 2) == [table[2], table[1]]


def test_of_two_pages_with_one_digest_the_first_stays_and_the_second_is_freed_by_its_holder() -> None:
    pool = BlockPool(2, 16)
    first, second = _taken(pool, 2)
    assert pool.register(first, b"a")
    assert not pool.register(second, b"a")
    assert pool.lookup(b"a") == first
    pool.release([second])
    assert pool.num_idle([second]) == 0
    pool.check([[first]])


def test_misuse_raises_instead_of_corrupting() -> None:
    pool = BlockPool(2, 16)
    with pytest.raises(ValueError, match="released more often"):
        pool.release([0])
    with pytest.raises(ValueError, match="not registered"):
        pool.share([0])
    with pytest.raises(ValueError, match="no holder"):
        pool.register(0, b"a")
    with pytest.raises(ValueError, match="at least 1"):
        BlockPool(0, 16)
    pool.check([])


def test_check_sees_a_lost_page_and_a_page_that_nobody_counted() -> None:
    pool = BlockPool(2, 16)
    pages = _taken(pool, 1)
    with pytest.raises(AssertionError, match="counts 1 holders"):
        pool.check([])
    with pytest.raises(AssertionError, match="2 tables have it"):
        pool.check([pages, pages])
    pool.check([pages])


def test_pages_for_rounds_up() -> None:
    pool = BlockPool(2, 16)
    assert [pool.pages_for(tokens) for tokens in (0, 1, 16, 17)] == [0, 1, 1, 2]
