"""A StepPlan on its way to the other hosts of a replica: what changed since the last one, and a digest of the whole.

A plan names every page of every sequence and how each is sampled, at every step. What a host knows already stays
behind: pages that a row had before, and the sampling that it was admitted with. The receiver puts them back, and
compares the digest with its own: hosts that ran different plans would wait for each other for ever. That a range is of
a text to embed stays behind too: no deployment on several hosts embeds, and a trace is replayed for its steps.
"""

import zlib
from array import array
from collections.abc import Iterable

import msgspec

from serving.engine.plan import Admission, Range, StepPlan
from serving.engine.request import SamplingParams
from serving.errors import EngineError


class RangeChange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A `Range` less what its row has already."""

    row: int
    start: int
    length: int
    token_ids: tuple[int, ...]
    page_count: int
    new_pages: tuple[int, ...]  # at the end of the row's table
    samples: bool
    num_output: int
    prompt_logprobs_from: int | None
    guesses: int


class PlanChange(msgspec.Struct, frozen=True, tag="plan"):
    step: int
    admissions: tuple[Admission, ...]
    ranges: tuple[RangeChange, ...]
    num_decode: int
    constrained: tuple[int, ...]
    rounds: int
    drafting: tuple[RangeChange, ...]
    digest: int


class PlanSender:
    """The leader's side. Plans must come in the order in which they are dispatched."""

    def __init__(self) -> None:
        self._known: dict[int, int] = {}  # by row, how many pages the receivers have

    def change(self, plan: StepPlan) -> PlanChange:
        for admission in plan.admissions:
            self._known[admission.row] = 0
        return PlanChange(
            plan.step,
            plan.admissions,
            tuple(map(self._change_of, plan.ranges)),
            plan.num_decode,
            plan.constrained,
            plan.rounds,
            tuple(map(self._change_of, plan.drafting)),
            digest_of(plan),
        )

    def _change_of(self, r: Range) -> RangeChange:
        known, count = self._known[r.row], len(r.pages)
        self._known[r.row] = count
        return RangeChange(
            r.row,
            r.start,
            r.length,
            r.token_ids,
            count,
            r.pages[known:] if known < count else (),
            r.samples,
            r.num_output,
            r.prompt_logprobs_from,
            r.guesses,
        )


class PlanReceiver:
    """A follower's side: the same plans in the same order."""

    def __init__(self) -> None:
        self._pages: dict[int, tuple[int, ...]] = {}
        self._sampling: dict[int, SamplingParams] = {}

    def plan(self, change: PlanChange) -> StepPlan:
        """Raises EngineError where what comes out is not the leader's plan."""
        for admission in change.admissions:
            self._pages[admission.row] = ()
            self._sampling[admission.row] = admission.sampling
        try:
            ranges = tuple(map(self._range_of, change.ranges))
            drafting = tuple(map(self._range_of, change.drafting))
        except KeyError as error:
            raise EngineError(
                f"plan {change.step} has row {error}, which was not admitted", code="plans_differ"
            ) from error
        plan = StepPlan(
            step=change.step,
            admissions=change.admissions,
            ranges=ranges,
            num_decode=change.num_decode,
            constrained=change.constrained,
            rounds=change.rounds,
            drafting=drafting,
        )
        if digest_of(plan) != change.digest:
            raise EngineError(f"plan {change.step} is not the one that the leader runs", code="plans_differ")
        return plan

    def _range_of(self, change: RangeChange) -> Range:
        pages = self._pages[change.row]
        if change.new_pages or len(pages) != change.page_count:
            pages = pages[: change.page_count - len(change.new_pages)] + change.new_pages
            self._pages[change.row] = pages
        return Range(
            row=change.row,
            start=change.start,
            length=change.length,
            token_ids=change.token_ids,
            pages=pages,
            samples=change.samples,
            sampling=self._sampling[change.row],
            num_output=change.num_output,
            prompt_logprobs_from=change.prompt_logprobs_from,
            guesses=change.guesses,
        )


def digest_of(plan: StepPlan) -> int:
    """A checksum over what decides which programs run, on which rows and pages. The same on every host."""
    return zlib.crc32(array("Q", _numbers_of(plan)).tobytes())


def _numbers_of(plan: StepPlan) -> Iterable[int]:
    yield from (plan.step, plan.num_decode, plan.rounds, len(plan.admissions), len(plan.ranges), *plan.constrained)
    for r in (*plan.ranges, *plan.drafting):
        yield from (r.row, r.start, r.length, len(r.pages), r.pages[-1], r.num_output, r.samples, r.sampling.seed)
        yield r.guesses
