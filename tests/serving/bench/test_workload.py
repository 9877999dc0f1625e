"""What a benchmark sends."""

import random
from itertools import pairwise

import pytest

from serving.bench.workload import Workload, items


def made(seed: int = 0, content: int = 0, **fields: object) -> list:
    defaults: dict = {"num_prompts": 200, "input_len": 40, "output_len": 20}
    return items(Workload(**{**defaults, **fields}), random.Random(seed), random.Random(content))


def test_the_seed_fixes_shape_and_arrivals_whatever_the_content() -> None:
    first, second = made(rate=5.0, input_range=0.5, content=1), made(rate=5.0, input_range=0.5, content=2)
    assert [(i.at, len(i.token_ids), i.output_len) for i in first] == [
        (i.at, len(i.token_ids), i.output_len) for i in second
    ]
    assert all(a.token_ids != b.token_ids for a, b in zip(first, second, strict=True))


def test_lengths_stay_within_their_range_and_reach_both_ends_of_it() -> None:
    found = made(input_range=0.25, output_range=0.5)
    assert {len(i.token_ids) for i in found} == set(range(30, 51))
    assert min(i.output_len for i in found) == 10
    assert max(i.output_len for i in found) == 30


def test_without_a_range_every_length_is_the_same() -> None:
    assert {(len(i.token_ids), i.output_len) for i in made()} == {(40, 20)}


def test_the_shared_prefix_comes_before_every_prompt_and_nothing_else_is_shared() -> None:
    found = made(shared_prefix_len=16)
    assert len({i.token_ids[:16] for i in found}) == 1
    assert len({i.token_ids[16:20] for i in found}) == len(found)
    assert {len(i.token_ids) for i in found} == {56}


def test_token_ids_stay_in_their_range() -> None:
    assert {t for i in made(first_token_id=7, last_token_id=9) for t in i.token_ids} == {7, 8, 9}


def test_poisson_arrivals_have_the_rate_and_an_exponential_spread() -> None:
    found = made(num_prompts=20000, input_len=1, rate=4.0)
    gaps = [b.at - a.at for a, b in pairwise(found)]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(0.25, rel=0.05)
    assert sum((gap - mean) ** 2 for gap in gaps) / len(gaps) == pytest.approx(0.25**2, rel=0.1)


def test_without_a_rate_everything_is_due_at_once() -> None:
    assert {i.at for i in made()} == {0.0}


def test_text_prompts_are_words_and_no_token_ids() -> None:
    found = made(text_prompts=True, shared_prefix_len=3)
    assert {i.token_ids for i in found} == {()}
    assert {len(i.text.split()) for i in found} == {43}
    assert len({" ".join(i.text.split()[:3]) for i in found}) == 1
