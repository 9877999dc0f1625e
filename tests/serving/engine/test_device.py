"""What a deployment's numbers become: buckets within the budget, pages within the bytes, threads of the device."""

import os

import pytest

from serving.config import EngineConfig
from serving.engine.device import page_count, start_backend, token_buckets
from serving.engine.limits import ExecutorLimits
from serving.errors import ConfigError

PAGE_BYTES = 2048
LIMITS = ExecutorLimits(max_num_seqs=1, max_model_len=64, page_size=16, num_pages=1, token_buckets=(1,))


@pytest.mark.parametrize(
    ("engine", "smallest", "expected"),
    [
        (EngineConfig(max_num_seqs=32, max_num_batched_tokens=512), 1, (1, 8, 32, 64, 128, 256, 512)),
        (EngineConfig(max_num_seqs=32, max_num_batched_tokens=512), 8, (8, 32, 64, 128, 256, 512)),
        (EngineConfig(max_num_seqs=4, max_num_batched_tokens=4), 1, (1, 4)),
        (EngineConfig(max_num_seqs=1, max_num_batched_tokens=1), 8, (1,)),
        (EngineConfig(max_num_seqs=5, max_num_batched_tokens=100), 1, (1, 5, 10, 20, 40, 80, 100)),
        (EngineConfig(max_num_seqs=4, max_num_batched_tokens=64, token_buckets=(16, 2)), 1, (2, 16, 64)),
    ],
)
def test_no_bucket_exceeds_the_budget_and_the_budget_has_one(
    engine: EngineConfig, smallest: int, expected: tuple[int, ...]
) -> None:
    assert token_buckets(engine, smallest) == expected


def test_pages_fill_the_bytes_given() -> None:
    assert page_count(None, 10 * PAGE_BYTES + 1, PAGE_BYTES, LIMITS) == 10
    assert page_count(7, None, PAGE_BYTES, LIMITS) == 7


@pytest.mark.parametrize(("given", "room"), [(None, 3 * PAGE_BYTES), (3, None)])
def test_a_pool_that_cannot_hold_one_sequence_is_refused_with_what_it_would_take(
    given: int | None, room: int | None
) -> None:
    with pytest.raises(ConfigError, match="needs 4"):
        page_count(given, room, PAGE_BYTES, LIMITS)


@pytest.mark.parametrize(("given", "room", "page"), [(2**31, None, 1), (None, 2**31, 1), (2**30, None, 2**31)])
def test_pages_beyond_any_index_and_any_memory_are_refused(given: int | None, room: int | None, page: int) -> None:
    """XLA would end the process."""
    with pytest.raises(ConfigError, match="more than can be") as caught:
        page_count(given, room, page, LIMITS)
    assert caught.value.param == ("num_pages" if given else "cache_bytes")


@pytest.mark.parametrize(("cores", "asked", "given"), [(1, None, 1), (2, None, 2), (8, None, 7), (8, 3, 3), (2, 9, 2)])
def test_of_more_than_two_cores_one_is_left_to_the_host(
    cores: int, asked: int | None, given: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[int]] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)), raising=False)
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, chosen: seen.append(list(chosen)), raising=False)
    start_backend(asked)
    assert seen == [list(range(given)), list(range(cores))]
