"""A summary for people (a table) and for programs (JSON)."""

import dataclasses
from typing import Any

from rich.table import Table

from serving.bench.summary import Slo, Spread, Summary
from serving.bench.workload import Workload


def table(summary: Summary, slo: Slo) -> Table:
    shown = Table(title=f"{summary.completed} of {summary.requests} requests in {summary.seconds:.1f} s", min_width=64)
    for column in ("", "mean", "p50", "p90", "p99", "max"):
        shown.add_column(column, justify="right" if column else "left")
    for name, spread in (
        ("time to first token, ms", summary.ttft),
        ("between pieces of text, ms", summary.itl),
        ("per output token, ms", summary.tpot),
        ("whole request, ms", summary.e2e),
    ):
        shown.add_row(name, *_numbers(spread))
    shown.add_section()
    for name, value in _facts(summary, slo):
        shown.add_row(name, value)
    return shown


def record(summary: Summary, workload: Workload, slo: Slo, **facts: Any) -> dict[str, Any]:
    """Everything about a run, as JSON's types. `facts`: what else identifies it, such as the url and the model."""
    return {
        **facts,
        "workload": dataclasses.asdict(workload),
        "slo": dataclasses.asdict(slo),
        "summary": dataclasses.asdict(summary),
    }


def _numbers(spread: Spread) -> list[str]:
    return [f"{value:,.1f}" for value in (spread.mean, spread.p50, spread.p90, spread.p99, spread.max)]


def _facts(summary: Summary, slo: Slo) -> list[tuple[str, str]]:
    facts = [
        ("output tokens/s", f"{summary.output_tokens_per_second:,.1f}"),
        ("requests/s", f"{summary.requests_per_second:,.2f}"),
        ("output tokens", f"{summary.output_tokens:,}"),
    ]
    if summary.prompt_tokens is not None:
        facts.append(("prompt tokens", f"{summary.prompt_tokens:,}"))
    if summary.cached_tokens is not None:
        facts.append(("of them cached", f"{summary.cached_tokens:,}"))
    if summary.goodput_per_second is not None:
        bounds = [f"{name} <= {bound:g} ms" for name, bound in (("TTFT", slo.ttft_ms), ("ITL", slo.itl_ms)) if bound]
        facts.append((f"goodput, requests/s ({', '.join(bounds)})", f"{summary.goodput_per_second:,.2f}"))
    facts.append(("this client's CPU", f"{summary.client_cpu_share:.0%}"))
    facts += [(f"failed: {kind}", f"{count:,}") for kind, count in summary.errors.items()]
    return facts
