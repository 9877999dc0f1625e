"""What the loop says of a stream that nothing could be drawn for. The tokens of others: test_same_tokens."""

import logging

import numpy as np
import pytest

from serving.engine.block_pool import BlockPool
from serving.engine.engine import EngineLoop
from serving.engine.plan import RangeResult, StepPlan, StepResult
from serving.engine.request import FinishReason, GenerateRequest, SamplingParams
from serving.engine.scheduler import NOTHING_TO_DRAW, Scheduler


class BrokenStep:
    def __init__(self, plan: StepPlan) -> None:
        self._plan = plan

    def draw(self, masks: np.ndarray) -> None:
        raise AssertionError("no range has a grammar")

    def collect(self) -> StepResult:
        return StepResult(ranges=tuple(RangeResult(token_id=-1) for _ in self._plan.ranges))


class BrokenDevice:
    """Its logits are no numbers."""

    def dispatch(self, plan: StepPlan) -> BrokenStep:
        return BrokenStep(plan)


def test_a_stream_that_fails_is_told_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    scheduler = Scheduler(
        max_model_len=64,
        max_num_seqs=4,
        max_num_batched_tokens=32,
        max_waiting=4,
        pool=BlockPool(8, 16),
        vocab_size=100,
    )
    loop = EngineLoop(scheduler, BrokenDevice(), now=lambda: 0.0)
    sampling = SamplingParams(temperature=0.0, max_tokens=4)
    scheduler.add(GenerateRequest(request_id="unlucky", prompt_token_ids=(1, 2, 3), sampling=sampling), now=0.0)
    with caplog.at_level(logging.ERROR):
        [event] = loop.step() + loop.step()
    assert (event.finish_reason, event.error) == (FinishReason.ERROR, NOTHING_TO_DRAW)
    [record] = caplog.records
    assert record.fields == {"request_id": "unlucky", "reason": NOTHING_TO_DRAW}  # pyright: ignore[reportAttributeAccessIssue]
    assert not scheduler.has_requests
