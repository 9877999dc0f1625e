"""A plan as a page of text, and as JSON."""

from typing import Any

from rich.console import Console
from rich.table import Table

from serving.planner.collectives import Collective
from serving.planner.deployment_plan import Plan
from serving.planner.roofline import Step

KIB, GIB = 1 << 10, 1 << 30


def print_plan(plan: Plan, console: Console) -> None:
    _print_memory(plan, console)
    _print_collectives(plan, console)
    _print_speed(plan, console)
    for line in plan.advice:
        console.print(f"To make it fit: {line}.")


def plan_record(plan: Plan) -> dict[str, Any]:
    """Numbers in bytes, seconds and tokens a second, under names that stay."""
    held = plan.holdings
    return {
        "deployment": plan.deployment,
        "topology": plan.topology,
        "mesh": plan.mesh,
        "devices": plan.devices,
        "parameters": held.parameters,
        "fits": plan.fits,
        "max_model_len": plan.max_model_len,
        "per_device": {
            "memory": plan.memory,
            "weights": held.weights,
            "sampler_rows": held.rows,
            "beside": [
                {
                    "name": one.name,
                    "weights": one.weights,
                    "page_bytes_per_token": one.pages,
                    "state_bytes_per_token": one.states,
                    "sums": one.sums,
                    "temporaries": plan.temporaries_beside.get(one.name, 0),
                }
                for one in plan.beside
            ],
            "temporaries": plan.temporaries,
            "page_bytes_per_token": held.position,
        },
        "context_tokens_that_fit": max(0, plan.positions),
        "expert_exchange": {str(tokens): way for tokens, way in plan.expert_ways.items()},
        "steps": [
            {
                "tokens": step.tokens,
                "temporaries": step.temporaries,
                "bytes_sent_per_device": step.sent,
                "collectives": [
                    {"kind": one.kind, "bytes": one.size, "devices": one.group, "count": count}
                    for one, count in step.collectives.items()
                ],
            }
            for step in plan.steps.values()
        ],
        "decode": {str(context): [_step_record(step) for step in steps] for context, steps in plan.decode.items()},
        "prefill": [_step_record(step) for step in plan.prefill],
        "advice": plan.advice,
    }


def _print_memory(plan: Plan, console: Console) -> None:
    held = plan.holdings
    mesh = " x ".join(f"{axis} {size}" for axis, size in plan.mesh.items()) or "one device"
    console.print(
        f"{plan.deployment}: {held.parameters / 1e9:.1f}B parameters on {plan.topology}, mesh {mesh} "
        f"({plan.devices} of its devices)"
    )
    table = Table("memory of a device", "GiB", title_justify="left")
    for name, size in (
        ("weights", held.weights),
        *((f"weights of the {one.name}", one.weights) for one in plan.beside if one.weights),
        ("sampler's rows", held.rows),
        *(("sums of texts that are pooled", one.sums) for one in plan.beside if one.sums),
        ("temporaries of the largest program", plan.temporaries),
        ("left for pages", plan.memory - plan.fixed - plan.temporaries),
        ("in all", plan.memory),
    ):
        table.add_row(name, f"{size / GIB:,.2f}")
    table.columns[1].justify = "right"
    console.print(table)
    parts = [("pages", held.position)]
    for one in plan.beside:
        parts += [(f"pages of the {one.name}", one.pages), ("hidden states that it reads", one.states)]
    told = [f"{size / KIB:,.1f} of {name}" for name, size in parts if size]
    each = f" ({', '.join(told)})" if len(told) > 1 else ""
    fitting = f"{max(0, plan.positions):,} tokens of context fit, {plan.position / KIB:,.1f} KiB each{each}"
    full = plan.positions // plan.max_model_len
    verdict = (
        f"{full:,} sequences of {plan.max_model_len:,}" if plan.fits else f"not one sequence of {plan.max_model_len:,}"
    )
    console.print(f"{fitting}: {verdict}.")


def _print_collectives(plan: Plan, console: Console) -> None:
    for tokens, way in plan.expert_ways.items():
        console.print(f"Routed experts in steps of {tokens:,} tokens are joined by {way}.")
    table = Table("step of", "collective", "times", "bytes each", "sent by a device")
    for step in plan.steps.values():
        for one, count in sorted(step.collectives.items(), key=_traffic, reverse=True):
            sent = f"{one.sent * count / 1e6:,.2f} MB"
            table.add_row(
                f"{step.tokens:,} tokens", f"{one.kind} over {one.group}", f"{count:,}", f"{one.size:,}", sent
            )
    for column in table.columns[2:]:
        column.justify = "right"
    if table.row_count:
        console.print(table)


def _traffic(item: tuple[Collective, int]) -> float:
    return item[0].sent * item[1]


def _print_speed(plan: Plan, console: Console) -> None:
    table = Table("at best", "ms", "tokens/s", "bound by")
    for context, steps in plan.decode.items():
        for step in steps:
            room = "" if step.tokens * context <= plan.positions else " *"
            _add(table, f"decode, {step.tokens} x {context:,} tokens of context{room}", step)
    for step in plan.prefill:
        _add(table, f"prefill of {step.tokens:,} tokens", step)
    for column in table.columns[1:3]:
        column.justify = "right"
    console.print(table)
    console.print("A roofline of bytes, operations and messages; launches and the host are not in it.")
    if plan.beside:
        told = ", ".join(one.name for one in plan.beside)
        console.print(f"It is the chat model's alone: what is beside it ({told}) takes its own time, or saves some.")
    if any(step.tokens * context > plan.positions for context, steps in plan.decode.items() for step in steps):
        console.print("* More context than there are pages for.")


def _add(table: Table, name: str, step: Step) -> None:
    table.add_row(name, f"{step.seconds * 1e3:,.2f}", f"{step.tokens_per_second:,.0f}", step.bound)


def _step_record(step: Step) -> dict[str, Any]:
    return {
        "tokens": step.tokens,
        "seconds": step.seconds,
        "tokens_per_second": step.tokens_per_second,
        "bound": step.bound,
    }
