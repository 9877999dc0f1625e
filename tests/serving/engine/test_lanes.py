"""Rows dealt out to lanes, and what each lane gets and gives back."""

from dataclasses import dataclass, field

import numpy as np

from serving.engine.engine import SizedExecutor
from serving.engine.lanes import LaneExecutor
from serving.engine.limits import ExecutorLimits
from serving.engine.plan import Admission, Range, RangeResult, StepPlan, StepResult
from serving.engine.request import SamplingParams

LIMITS = ExecutorLimits(max_num_seqs=2, max_model_len=8, page_size=4, num_pages=4, token_buckets=(8,), shards=2)


@dataclass
class Recorded:
    plan: StepPlan
    masks: list[int] = field(default_factory=list)

    def draw(self, masks: np.ndarray) -> None:
        self.masks = masks[:, 0].tolist()

    def collect(self) -> StepResult:
        return StepResult(ranges=tuple(RangeResult(token_id=r.token_ids[0]) for r in self.plan.ranges))


@dataclass
class RecordingLane:
    limits: ExecutorLimits = LIMITS
    vocab_size: int = 100
    programs_compiled: int = 3
    steps: list[Recorded] = field(default_factory=list)

    def dispatch(self, plan: StepPlan) -> Recorded:
        self.steps.append(Recorded(plan))
        return self.steps[-1]


def planned(row: int, length: int = 1) -> Range:
    return Range(
        row=row,
        start=0,
        length=length,
        token_ids=(10 + row,) * length,
        pages=(0,),
        samples=True,
        sampling=SamplingParams(),
        num_output=0,
    )


def step(rows: list[int], num_decode: int, constrained: tuple[int, ...] = ()) -> StepPlan:
    return StepPlan(
        step=0,
        admissions=tuple(
            Admission(row=row, sampling=SamplingParams(), prompt_token_ids=(1,), output_token_ids=()) for row in rows
        ),
        ranges=tuple(planned(row, 1 if i < num_decode else 2) for i, row in enumerate(rows)),
        num_decode=num_decode,
        constrained=constrained,
    )


def test_lanes_share_out_the_rows_of_each_shard_and_results_come_back_in_the_plans_order() -> None:
    lanes = [RecordingLane(), RecordingLane()]
    given: list[SizedExecutor] = [*lanes]
    executor = LaneExecutor(given)
    assert executor.limits.max_num_seqs == 4
    # Two shards of four rows: rows 0 .. 3 and 4 .. 7.
    pending = executor.dispatch(step([7, 0, 1, 4, 6], num_decode=3))
    assert [[r.row for r in lane.steps[0].plan.ranges] for lane in lanes] == [[0, 2, 3], [3, 0]]
    assert [[a.row for a in lane.steps[0].plan.admissions] for lane in lanes] == [[0, 2, 3], [3, 0]]
    assert [lane.steps[0].plan.num_decode for lane in lanes] == [1, 2]
    assert [result.token_id for result in pending.collect().ranges] == [17, 10, 11, 14, 16]


def test_a_lane_without_rows_in_a_step_runs_nothing() -> None:
    lanes = [RecordingLane(), RecordingLane()]
    given: list[SizedExecutor] = [*lanes]
    LaneExecutor(given).dispatch(step([0, 2], num_decode=2))
    assert [len(lane.steps) for lane in lanes] == [1, 0]


def test_each_lane_gets_the_masks_of_its_own_ranges() -> None:
    lanes = [RecordingLane(), RecordingLane()]
    given: list[SizedExecutor] = [*lanes]
    pending = LaneExecutor(given).dispatch(step([1, 0, 3, 2], num_decode=4, constrained=(0, 1, 2)))
    pending.draw(np.array([[70], [71], [72]], np.uint32))
    assert [lane.steps[0].masks for lane in lanes] == [[71], [70, 72]]
