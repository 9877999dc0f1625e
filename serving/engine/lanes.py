"""Micro-batches of a pipeline: rows are dealt out to as many lanes as there are stages, and lanes follow each other.

A lane's next step needs its own last tokens alone, not the other lanes': while one lane is at the second stage, another
is at the first, and with as many lanes as stages none of the devices has to wait where all lanes have work.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from serving.engine.engine import Pending, SizedExecutor
from serving.engine.plan import RangeResult, StepPlan, StepResult


class LaneExecutor:
    """An executor of rows that lanes share out: row r of a data shard is row r // lanes of lane r % lanes."""

    def __init__(self, lanes: list[SizedExecutor], memory: Any = None) -> None:
        """Each with some of the rows, all with the same limits, and over the same weights and pages, which are in
        `memory`, their DeviceMemory."""
        self._lanes = lanes
        self.memory = memory
        of_a_lane = lanes[0].limits
        self.limits = dataclasses.replace(of_a_lane, max_num_seqs=of_a_lane.max_num_seqs * len(lanes))
        self.vocab_size = lanes[0].vocab_size
        self.programs_compiled = lanes[0].programs_compiled

    def dispatch(self, plan: StepPlan) -> "PendingLanes":
        parts = []
        for number, lane in enumerate(self._lanes):
            places, part = self._part(plan, number)
            if part.ranges:  # an admission comes with a range of its row
                parts.append(LanePart(places, part, lane.dispatch(part)))
        return PendingLanes(plan, parts)

    def _part(self, plan: StepPlan, lane: int) -> tuple[list[int], StepPlan]:
        """The ranges of one lane, with its rows, and their places in the plan."""
        places = [i for i, r in enumerate(plan.ranges) if self._lane_and_row(r.row)[0] == lane]
        numbers = {place: i for i, place in enumerate(places)}
        return places, dataclasses.replace(
            plan,
            admissions=tuple(
                dataclasses.replace(admission, row=row)
                for admission in plan.admissions
                for number, row in [self._lane_and_row(admission.row)]
                if number == lane
            ),
            ranges=tuple(
                dataclasses.replace(r, row=self._lane_and_row(r.row)[1]) for r in (plan.ranges[i] for i in places)
            ),
            num_decode=sum(place < plan.num_decode for place in places),
            constrained=tuple(numbers[i] for i in plan.constrained if i in numbers),
        )

    def _lane_and_row(self, row: int) -> tuple[int, int]:
        lanes = len(self._lanes)
        shard, within = divmod(row, self.limits.max_num_seqs)
        return within % lanes, shard * (self.limits.max_num_seqs // lanes) + within // lanes


@dataclass(frozen=True, slots=True)
class LanePart:
    places: list[int]  # of its ranges in the whole plan
    plan: StepPlan
    pending: Pending


@dataclass(frozen=True, slots=True)
class PendingLanes:
    """A step whose parts are on the devices."""

    plan: StepPlan
    parts: list[LanePart]

    def draw(self, masks: np.ndarray) -> None:
        """Row i of masks [n, W] is for the i-th of the plan's constrained ranges."""
        for part in self.parts:
            chosen = {part.places[i] for i in part.plan.constrained}
            if chosen:
                part.pending.draw(masks[[i for i, place in enumerate(self.plan.constrained) if place in chosen]])

    def collect(self) -> StepResult:
        results: dict[int, RangeResult] = {}
        for part in self.parts:
            results |= zip(part.places, part.pending.collect().ranges, strict=True)
        return StepResult(ranges=tuple(results[i] for i in range(len(self.plan.ranges))))
