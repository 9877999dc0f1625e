"""Which data shard a stream goes to, and how the shards' plans become one."""

import pytest

from serving.config import EngineConfig
from serving.engine.block_pool import BlockPool
from serving.engine.limits import of_a_shard
from serving.engine.plan import RangeResult, StepPlan, StepResult
from serving.engine.request import GenerateRequest, SamplingParams
from serving.engine.scheduler import Scheduler
from serving.engine.shards import ShardedScheduler, ShardLoad, choose_shard
from serving.errors import ConfigError, RequestError

PAGE, ROWS = 4, 4


@pytest.mark.parametrize(
    ("loads", "chosen"),
    [
        ([(0, 0), (0, 0)], 0),
        ([(1, 0), (0, 0)], 1),
        ([(1, 3), (0, 2)], 0),  # more of the prompt
        ([(1, 3), (0, 3)], 1),
        ([(2, 3), (0, 0)], 1),  # but not at any price
    ],
)
def test_a_stream_goes_where_most_of_its_prompt_is_unless_others_have_less_to_do(
    loads: list[tuple[int, int]], chosen: int
) -> None:
    assert choose_shard([ShardLoad(*load) for load in loads], slack=1) == chosen


def two_shards() -> ShardedScheduler:
    pools = [BlockPool(16, PAGE, prefix_caching=True) for _ in range(2)]
    schedulers = [
        Scheduler(max_model_len=32, max_num_seqs=ROWS, max_num_batched_tokens=8, max_waiting=4, pool=pool)
        for pool in pools
    ]
    return ShardedScheduler(schedulers, pools, ROWS)


def request(name: str, prompt: tuple[int, ...], count: int = 2) -> GenerateRequest:
    return GenerateRequest(request_id=name, prompt_token_ids=prompt, sampling=SamplingParams(max_tokens=count))


def answered(plan: StepPlan) -> StepResult:
    """Each range draws the token that is its row."""
    return StepResult(ranges=tuple(RangeResult(token_id=r.row if r.samples else None) for r in plan.ranges))


def test_each_shard_plans_for_its_own_rows_and_pages_and_gets_its_own_results() -> None:
    scheduler = two_shards()
    for name, first in (("a", 1), ("b", 2), ("c", 3)):
        scheduler.add(request(name, (first, 5, 6)), 0.0)
    plan = scheduler.plan(0.0)
    assert plan is not None
    assert [r.row // ROWS for r in plan.ranges] == [0, 0, 1]
    assert {r.token_ids[0]: r.row // ROWS for r in plan.ranges} == {1: 0, 2: 1, 3: 0}
    assert [admission.row for admission in plan.admissions] == [r.row for r in plan.ranges]
    assert plan.ranges[0].pages == plan.ranges[2].pages  # numbers of pages are those of a shard
    events = scheduler.commit(plan, answered(plan))
    rows = {r.token_ids[0]: r.row for r in plan.ranges}
    assert {event.request_id: event.token_ids for event in events} == {
        "a": (rows[1],),
        "b": (rows[2],),
        "c": (rows[3],),
    }
    scheduler.check()


def test_decodes_of_all_shards_come_before_chunks_of_any() -> None:
    scheduler = two_shards()
    scheduler.add(request("a", (1, 5)), 0.0)
    scheduler.add(request("b", (2, 5)), 0.0)
    plan = scheduler.plan(0.0)
    assert plan is not None
    scheduler.commit(plan, answered(plan))
    scheduler.add(request("c", (3, 5, 6)), 0.0)
    plan = scheduler.plan(0.0)
    assert plan is not None
    assert [r.length for r in plan.ranges] == [1, 1, 3]
    assert plan.num_decode == 2


def test_a_prefix_is_found_again_where_it_was_computed() -> None:
    scheduler = two_shards()
    prompt = tuple(range(10, 19))
    scheduler.add(request("other", (1, 2)), 0.0)
    scheduler.add(request("first", prompt), 0.0)
    while (plan := scheduler.plan(0.0)) is not None:
        scheduler.commit(plan, answered(plan))
    scheduler.add(request("again", prompt), 0.0)
    plan = scheduler.plan(0.0)
    assert plan is not None
    (planned,) = plan.ranges
    assert planned.row // ROWS == 1
    assert planned.start == 8
    assert scheduler.stats.prefix_cache_hits == 8


def test_a_stream_of_any_shard_is_aborted_and_its_name_free_again() -> None:
    scheduler = two_shards()
    for name in ("a", "b"):
        scheduler.add(request(name, (1, 2)), 0.0)
    with pytest.raises(RequestError, match="'b' belongs to a live stream"):
        scheduler.add(request("b", (1, 2)), 0.0)
    event = scheduler.abort("b")
    assert event is not None
    assert scheduler.abort("b") is None
    scheduler.add(request("b", (1, 2)), 0.0)
    assert scheduler.stats.waiting == 2


def test_limits_that_shards_cannot_share_are_refused_with_what_would_work() -> None:
    engine = EngineConfig(max_num_seqs=10, max_num_batched_tokens=64)
    with pytest.raises(ConfigError, match=r"max_num_seqs is 10, which 4 data shards .* it can be 8 or 12"):
        of_a_shard(engine, 4)
    assert of_a_shard(engine, 2).max_num_seqs == 5
