"""A long prompt is cut so that the streams beside it keep their pace."""

from collections.abc import Callable

from serving.engine.policies.chunking import LEAST_CHUNK, step_tokens
from serving.engine.step_cost import STALE_AFTER, StepCost
from tests.fakes.paged_device import VOCAB_SIZE, expected_stream
from tests.serving.engine.driven_scheduler import DrivenScheduler, ranges

BUCKETS = (32, 64, 128, 256, 512)


def _measured(seconds: Callable[[int], float], *buckets: int) -> StepCost:
    cost = StepCost(BUCKETS)
    for bucket in buckets:
        cost.observe(bucket, seconds(bucket))
    return cost


def test_the_largest_bucket_within_the_target_is_chosen() -> None:
    cost = _measured(lambda bucket: bucket / 1000, *BUCKETS)
    assert step_tokens(cost, 0.3, 8, 512) == 256
    assert step_tokens(cost, 0.256, 8, 512) == 256
    assert step_tokens(cost, 0.1, 8, 512) == 64
    assert step_tokens(cost, 9.0, 8, 512) == 512


def test_a_prompt_advances_whatever_the_target() -> None:
    cost = _measured(lambda bucket: 1.0, *BUCKETS)
    for decodes in (1, 16, 40, 500):
        assert step_tokens(cost, 1e-9, decodes, 512) >= min(decodes + LEAST_CHUNK, 512)


def test_a_bucket_that_was_never_tried_is_tried_when_the_one_below_is_within_the_target() -> None:
    assert step_tokens(_measured(lambda _: 0.01, 32), 0.02, 8, 512) == 64
    assert step_tokens(_measured(lambda _: 0.03, 32), 0.02, 8, 512) == 32
    assert step_tokens(StepCost(BUCKETS), 0.02, 8, 512) == 32


def test_a_failed_trial_is_repeated_at_most_once_in_a_hundred_steps() -> None:
    cost, trials, steps = StepCost(BUCKETS), 0, 20 * STALE_AFTER
    for _ in range(steps):
        tokens = step_tokens(cost, 0.1, 8, 512)
        cost.observe(tokens, tokens / 1000)  # 64 fit, 128 do not
        trials += tokens > 64
    assert 0 < trials < steps / 100


def test_chunks_shrink_when_the_same_step_grows_dearer() -> None:
    cost = _measured(lambda bucket: bucket / 10000, *BUCKETS)
    chosen: list[int] = []
    for position in range(200):  # as attention over a prompt that has been read so far
        chosen.append(step_tokens(cost, 0.05, 8, 512))
        cost.observe(chosen[-1], chosen[-1] * (1 + position / 20) / 10000)
    assert chosen[0] > chosen[100] > chosen[-1] >= 32


def test_with_a_target_a_long_prompt_is_cut_only_while_somebody_decodes() -> None:
    driven = DrivenScheduler(
        num_pages=200,
        max_num_seqs=2,
        max_num_batched_tokens=64,
        max_model_len=300,
        token_buckets=(4, 20, 64),
        target_inter_token=0.02,
        step_seconds=0.05,
    )
    prompt = tuple(i * i % VOCAB_SIZE for i in range(200))
    alone = driven.add("alone", prompt, max_tokens=60)
    lengths = [ranges(driven.step())[0].length for _ in range(4)]
    assert lengths == [64, 64, 64, 8]
    for _ in range(4):
        driven.step()
    beside = driven.add("beside", tuple((i * i + 3) % VOCAB_SIZE for i in range(100)), max_tokens=2)
    while not driven.events["beside"]:
        plan = driven.step()
        assert plan is not None
        assert plan.num_tokens <= 20
    driven.finish()
    for request in (alone, beside):
        assert driven.tokens(request.request_id) == expected_stream(request, 300).token_ids
