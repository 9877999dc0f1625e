"""A plan as people and programs read it: what is beside the chat model has its lines, and its share of the memory."""

import dataclasses
import io
from collections import Counter

import pytest
from rich.console import Console

from serving.planner.beside import Beside
from serving.planner.compiled import CompiledStep, Holdings
from serving.planner.deployment_plan import Plan
from serving.planner.report import plan_record, print_plan

GIB, KIB = 1 << 30, 1 << 10
HELD = Holdings(
    parameters=10**9,
    weights=2 * GIB,
    experts=0,
    gathered=0,
    multiplied=10**9,
    multiplied_experts=0,
    rows=GIB,
    position=8 * KIB,
)
ALONE = Plan(
    deployment="tiny",
    topology="h100:1",
    mesh={},
    devices=1,
    memory=16 * GIB,
    holdings=HELD,
    beside=(),
    shards=1,
    steps={8: CompiledStep(8, GIB, collectives=Counter(), seconds=1.0)},
    temporaries_beside={},
    expert_ways={},
    max_model_len=4096,
    decode={},
    prefill=[],
    advice=[],
)
COMPANY = dataclasses.replace(
    ALONE,
    beside=(
        Beside(name="EAGLE-3 head", weights=GIB, pages=2 * KIB, states=6 * KIB),
        Beside(name="encoder", weights=GIB // 2),
        Beside(name="pooling", sums=GIB // 2),
    ),
    temporaries_beside={"EAGLE-3 head": 2 * GIB, "encoder": GIB // 4},
)


def told(plan: Plan) -> str:
    into = io.StringIO()
    print_plan(plan, Console(file=into, width=200))
    return into.getvalue()


def test_what_is_beside_takes_its_part_of_the_memory_and_of_each_position() -> None:
    assert ALONE.positions == 12 * GIB // (8 * KIB)
    assert (COMPANY.fixed, COMPANY.position, COMPANY.temporaries) == (5 * GIB, 16 * KIB, 2 * GIB)
    assert COMPANY.positions == 9 * GIB // (16 * KIB)
    assert dataclasses.replace(COMPANY, memory=7 * GIB).fits is False


def test_each_of_it_has_a_line() -> None:
    lines = told(COMPANY)
    for name, gib in (
        ("weights of the EAGLE-3 head", "1.00"),
        ("weights of the encoder", "0.50"),
        ("sums of texts that are pooled", "0.50"),
        ("temporaries of the largest program", "2.00"),
        ("left for pages", "9.00"),
    ):
        (line,) = (line for line in lines.splitlines() if name in line)
        assert gib in line
    assert "16.0 KiB each (8.0 of pages, 2.0 of pages of the EAGLE-3 head, 6.0 of hidden states" in lines
    assert "beside" not in told(ALONE)
    assert "(8.0 of" not in told(ALONE)


@pytest.mark.parametrize(("plan", "names"), [(ALONE, []), (COMPANY, ["EAGLE-3 head", "encoder", "pooling"])])
def test_programs_read_the_same(plan: Plan, names: list[str]) -> None:
    of_a_device = plan_record(plan)["per_device"]
    assert [one["name"] for one in of_a_device["beside"]] == names
    if names:
        head, _, pooling = of_a_device["beside"]
        assert (head["weights"], head["page_bytes_per_token"], head["state_bytes_per_token"]) == (GIB, 2 * KIB, 6 * KIB)
        assert (head["temporaries"], pooling["sums"]) == (2 * GIB, GIB // 2)
