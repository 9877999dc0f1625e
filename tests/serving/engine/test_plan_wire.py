"""Every plan of random histories arrives as it was sent, and one that does not is refused."""

import dataclasses
import random

import msgspec
import pytest

from serving.engine import cluster_wire
from serving.engine.plan import Admission, Range, StepPlan
from serving.engine.plan_wire import PlanChange, PlanReceiver, PlanSender, RangeChange, digest_of
from serving.engine.request import SamplingParams
from serving.errors import EngineError

PAGE = 4


def history(seed: int, steps: int = 60) -> list[StepPlan]:
    """Plans as a scheduler could make them: rows that are taken, grow, come back after preemption, and end."""
    draw = random.Random(seed)
    lengths: dict[int, int] = {}
    sampling: dict[int, SamplingParams] = {}
    pages: dict[int, tuple[int, ...]] = {}
    plans = []
    for step in range(steps):
        admissions = []
        for row in range(4):
            if row not in lengths or draw.random() < 0.1:
                sampling[row] = SamplingParams(seed=draw.getrandbits(64), max_tokens=9, logprobs=draw.choice([None, 2]))
                prompt = tuple(draw.choices(range(100), k=draw.randint(1, 9)))
                admissions.append(
                    Admission(row=row, sampling=sampling[row], prompt_token_ids=prompt, output_token_ids=())
                )
                lengths[row], pages[row] = 0, tuple(draw.choices(range(500), k=draw.randint(0, 2)))  # shared ones
        chosen = draw.sample(sorted(lengths), draw.randint(1, 4))
        ranges = []
        for row in chosen:
            start, length = lengths[row], draw.randint(1, 6)
            lengths[row] = start + length
            short = -(-(start + length) // PAGE) - len(pages[row])
            pages[row] += tuple(draw.choices(range(500), k=max(short, 0)))
            fed_back = length == 1 and draw.random() < 0.5
            ranges.append(
                Range(
                    row=row,
                    start=start,
                    length=length,
                    token_ids=() if fed_back else tuple(draw.choices(range(100), k=length)),
                    pages=pages[row],
                    samples=draw.random() < 0.5,
                    sampling=sampling[row],
                    num_output=draw.randint(0, 9),
                    prompt_logprobs_from=draw.choice([None, start]),
                )
            )
        constrained = tuple(i for i, r in enumerate(ranges) if r.samples and draw.random() < 0.3)
        plans.append(
            StepPlan(
                step=step,
                admissions=tuple(admissions),
                ranges=tuple(ranges),
                num_decode=0,
                constrained=constrained,
            )
        )
    return plans


def sent(change: PlanChange) -> PlanChange:
    received = cluster_wire.decode_from_leader(cluster_wire.encode(change))
    assert isinstance(received, PlanChange)
    return received


@pytest.mark.parametrize("seed", range(8))
def test_every_plan_arrives_as_it_was_sent(seed: int) -> None:
    sender, receiver = PlanSender(), PlanReceiver()
    for plan in history(seed):
        assert receiver.plan(sent(sender.change(plan))) == plan


def test_what_a_row_has_already_is_not_sent_again() -> None:
    sender = PlanSender()
    first, second = history(3, steps=2)
    for plan in (first, dataclasses.replace(second, admissions=(), ranges=first.ranges)):
        change = sender.change(plan)
    assert [r.new_pages for r in change.ranges] == [()] * len(first.ranges)


@pytest.mark.parametrize(
    ("message", "kind"),
    [(PlanChange, StepPlan), (RangeChange, Range)],
)
def test_no_field_of_a_plan_is_forgotten(message: type, kind: type) -> None:
    given = {f.name for f in msgspec.structs.fields(message)} - {"digest", "page_count", "new_pages"}
    sent_otherwise, never_sent = {"pages", "sampling"}, {"pools", "ends_text"}
    assert given | sent_otherwise | never_sent >= {f.name for f in dataclasses.fields(kind)} >= given


def test_a_plan_that_was_left_out_is_noticed_at_the_next() -> None:
    sender, receiver = PlanSender(), PlanReceiver()
    plans = history(1)
    changes = [sender.change(plan) for plan in plans]
    for change in changes[:10]:
        receiver.plan(sent(change))
    with pytest.raises(EngineError, match="not the one that the leader runs"):
        list(map(receiver.plan, map(sent, changes[11:])))


def test_a_row_that_was_never_admitted_is_an_error() -> None:
    plan = history(1)[0]
    change = PlanSender().change(plan)
    with pytest.raises(EngineError, match="was not admitted"):
        PlanReceiver().plan(msgspec.structs.replace(change, admissions=()))


@pytest.mark.parametrize("field", ["row", "start", "length", "num_output", "samples", "pages", "sampling"])
def test_the_digest_is_of_all_that_decides_what_runs(field: str) -> None:
    plan = history(2)[5]
    first = plan.ranges[0]
    changed = {
        "pages": (*first.pages[:-1], first.pages[-1] + 1),
        "sampling": dataclasses.replace(first.sampling, seed=first.sampling.seed ^ 1),
        "samples": not first.samples,
    }
    value = changed.get(field, getattr(first, field) + 1 if field not in changed else None)
    other = dataclasses.replace(first, **{field: value})
    assert digest_of(dataclasses.replace(plan, ranges=(other, *plan.ranges[1:]))) != digest_of(plan)
