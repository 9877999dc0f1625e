"""Packing: every number of a plan lies where the layout says, and a row keeps only what is its owner's."""

import itertools

import numpy as np
import pytest

from serving.engine.batch import (
    BANS_STOPS,
    FEEDS_BACK,
    SAMPLES,
    SEQUENCE_FIELDS,
    STATEFUL,
    BatchLayout,
    BatchPacker,
    slices_of,
)
from serving.engine.plan import Admission, Range, StepPlan
from serving.engine.request import SamplingParams

GREEDY = SamplingParams(temperature=0.0)
LAYOUT = BatchLayout(tokens=16, sequences=4, table_width=6)


def admission(row: int, sampling: SamplingParams = GREEDY) -> Admission:
    return Admission(row=row, sampling=sampling, prompt_token_ids=(1, 2, 3), output_token_ids=())


def part(row: int, start: int, tokens: tuple[int, ...], pages: tuple[int, ...], **changes: object) -> Range:
    fields = {"length": max(1, len(tokens)), "samples": True, "sampling": GREEDY, "num_output": 0, **changes}
    return Range(row=row, start=start, token_ids=tokens, pages=pages, **fields)  # type: ignore[arg-type]


def plan(*ranges: Range, admissions: tuple[Admission, ...] = (), step: int = 0) -> StepPlan:
    return StepPlan(step=step, admissions=admissions, ranges=ranges, num_decode=0)


def packer() -> BatchPacker:
    return BatchPacker(num_rows=8, table_width=LAYOUT.table_width, layout_for=lambda tokens: LAYOUT)


def unpacked(vector: np.ndarray) -> dict[str, np.ndarray]:
    fields = {name: vector[begin:end].reshape(shape) for name, (begin, end, shape) in slices_of(LAYOUT).items()}
    return fields | dict(zip(SEQUENCE_FIELDS, fields["sequences"], strict=True))


def test_a_mixed_batch_lies_where_the_layout_says() -> None:
    packed = packer().pack(
        plan(
            part(5, 9, (), (3, 4)),
            part(2, 4, (11, 12, 13), (7,)),
            part(0, 0, (21, 22), (8,), samples=False),
            admissions=(admission(5), admission(2), admission(0)),
        )
    )
    got = unpacked(packed.vector)
    assert got["counts"].tolist() == [1, 3]
    assert got["token_ids"][:6].tolist() == [0, 11, 12, 13, 21, 22]
    assert got["positions"][:6].tolist() == [9, 4, 5, 6, 0, 1]
    assert got["sequence_ids"].tolist() == [0, 1, 1, 1, 2, 2] + [4] * 10, "padding belongs to no sequence"
    assert got["cu_q_lens"].tolist() == [0, 1, 4, 6, 6]
    assert got["kv_len"][:3].tolist() == [10, 7, 2]
    assert got["last"][:3].tolist() == [0, 3, 5]
    assert got["row"][:3].tolist() == [5, 2, 0]
    assert got["flags"][:3].tolist() == [SAMPLES | FEEDS_BACK, SAMPLES, 0]
    assert got["page_table"][:3, :2].tolist() == [[3, 4], [7, 0], [8, 0]]


def test_the_vector_has_no_gap_and_no_overlap() -> None:
    ends = sorted((begin, end) for begin, end, _ in slices_of(LAYOUT).values())
    assert ends[0][0] == 0
    assert ends[-1][1] == LAYOUT.size
    assert all(end == begin for (_, end), (begin, _) in itertools.pairwise(ends))


def test_sampling_parameters_keep_every_bit() -> None:
    sampling = SamplingParams(temperature=0.7, top_p=0.9, top_k=40, seed=2**63 - 5, min_p=1e-8)
    got = unpacked(packer().pack(plan(part(1, 0, (3,), (0,)), admissions=(admission(1, sampling),))).vector)
    floats = {name: got[name].view(np.float32)[0] for name in ("temperature", "top_p", "min_p", "repetition")}
    assert floats == {
        "temperature": np.float32(0.7),
        "top_p": np.float32(0.9),
        "min_p": np.float32(1e-8),
        "repetition": 1,
    }
    seed = (int(got["seed_hi"].view(np.uint32)[0]) << 32) | int(got["seed_lo"].view(np.uint32)[0])
    assert seed == 2**63 - 5
    assert got["top_k"][0] == 40


def test_pages_added_later_reach_the_table() -> None:
    one = packer()
    one.pack(plan(part(3, 0, (1,), (9,)), admissions=(admission(3),)))
    got = unpacked(one.pack(plan(part(3, 16, (), (9, 4, 2)), step=1)).vector)
    assert got["page_table"][0, :3].tolist() == [9, 4, 2]


def test_a_new_owner_of_a_row_has_its_own_pages() -> None:
    one = packer()
    one.pack(plan(part(3, 0, (1,), (9, 8, 7)), admissions=(admission(3),)))
    got = unpacked(one.pack(plan(part(3, 0, (1,), (5, 6)), admissions=(admission(3),), step=1)).vector)
    assert got["page_table"][0, :2].tolist() == [5, 6]


@pytest.mark.parametrize(
    ("sampling", "plain"),
    [
        (GREEDY, True),
        (SamplingParams(temperature=0.5), False),
        (SamplingParams(temperature=0.0, presence_penalty=0.1), False),
        (SamplingParams(temperature=0.0, logit_bias=((1, 1.0),)), False),
        (SamplingParams(temperature=0.0, min_tokens=3, eos_token_ids=(1,)), False),
        (SamplingParams(temperature=0.0, min_tokens=3), True),
        (SamplingParams(temperature=0.0, logprobs=2), True),
    ],
)
def test_only_an_all_greedy_batch_skips_the_sampler(sampling: SamplingParams, plain: bool) -> None:
    ranges = part(0, 0, (1,), (0,)), part(1, 0, (1,), (1,), sampling=sampling)
    packed = packer().pack(plan(*ranges, admissions=(admission(0), admission(1, sampling))))
    assert packed.plain == plain
    assert packed.logprobs == (sampling.logprobs is not None)


def test_a_prompt_that_does_not_sample_yet_asks_for_no_sampler() -> None:
    warm = SamplingParams(temperature=1.0)
    packed = packer().pack(
        plan(part(1, 0, (1, 2), (0,), samples=False, sampling=warm), admissions=(admission(1, warm),))
    )
    assert packed.plain


def test_stops_are_banned_until_min_tokens() -> None:
    one, sampling = packer(), SamplingParams(min_tokens=2, eos_token_ids=(7,))
    flags = []
    for done in range(3):
        admissions = (admission(1, sampling),) if done == 0 else ()
        ranges = part(1, done, (1,), (0,), sampling=sampling, num_output=done)
        flags.append(unpacked(one.pack(plan(ranges, admissions=admissions, step=done)).vector)["flags"][0])
    assert flags == [SAMPLES | STATEFUL | BANS_STOPS, SAMPLES | STATEFUL | BANS_STOPS, SAMPLES | STATEFUL]
