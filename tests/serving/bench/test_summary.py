"""A run in numbers, worked out by hand."""

import pytest

from serving.bench.load import Run
from serving.bench.report import record, table
from serving.bench.summary import Slo, Spread, percentile, spread, summarize
from serving.bench.target import Measured
from serving.bench.workload import Workload


def measured(sent: float, chunks: list[float], tokens: int | None = None, error: str | None = None) -> Measured:
    return Measured(
        sent=sent,
        chunks=chunks,
        ended=chunks[-1] if chunks else sent,
        tokens=len(chunks) if tokens is None else tokens,
        prompt_tokens=10,
        error=error,
    )


RUN = Run(
    [
        measured(0.0, [0.1, 0.2, 0.3]),
        measured(1.0, [1.5, 1.7], tokens=5),  # pieces of several tokens
        measured(1.0, [1.2], error="HTTP 503"),
        measured(1.5, [], error="HTTP 503"),
    ],
    seconds=2.0,
    client_seconds=0.5,
)


def test_rates_and_latencies() -> None:
    found = summarize(RUN, Slo())
    assert (found.requests, found.completed, found.errors) == (4, 2, {"HTTP 503": 2})
    assert found.requests_per_second == 1.0
    assert found.output_tokens == 9
    assert found.output_tokens_per_second == 4.5
    assert found.prompt_tokens == 20
    assert found.cached_tokens is None
    assert found.ttft.mean == pytest.approx(300)
    assert found.ttft.max == pytest.approx(500)
    assert found.itl.p50 == pytest.approx(100)
    assert found.tpot.max == pytest.approx(100)
    assert found.tpot.mean == pytest.approx(75)
    assert found.e2e.max == pytest.approx(700)
    assert found.goodput_per_second is None
    assert found.client_cpu_share == 0.25


@pytest.mark.parametrize(
    ("slo", "goodput"),
    [(Slo(ttft_ms=200), 0.5), (Slo(itl_ms=60), 0.5), (Slo(ttft_ms=200, itl_ms=60), 0.0), (Slo(600, 200), 1.0)],
)
def test_goodput_counts_requests_that_met_every_objective(slo: Slo, goodput: float) -> None:
    assert summarize(RUN, slo).goodput_per_second == goodput


def test_percentiles_interpolate() -> None:
    ordered = [float(v) for v in range(11)]
    assert [percentile(ordered, p) for p in (0, 50, 90, 99, 100)] == pytest.approx([0, 5, 9, 9.9, 10])
    assert percentile([3.0], 99) == 3.0


def test_a_run_in_which_everything_failed_has_zeros() -> None:
    found = summarize(Run([measured(0.0, [], error="x")], 1.0, 0.0), Slo(ttft_ms=1))
    assert found.ttft == spread([]) == Spread(0, 0, 0, 0, 0)
    assert found.goodput_per_second == 0.0


def test_the_table_and_the_record_name_every_error() -> None:
    slo = Slo(ttft_ms=200)
    found = summarize(RUN, slo)
    cells = list(table(found, slo).columns[0].cells)
    assert "failed: HTTP 503" in cells
    assert "goodput, requests/s (TTFT <= 200 ms)" in cells
    written = record(found, Workload(num_prompts=4, input_len=1, output_len=1), slo, url="u")
    assert written["summary"]["errors"] == {"HTTP 503": 2}
    assert written["url"] == "u"
