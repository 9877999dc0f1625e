"""A run in numbers."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from serving.bench.load import Run
from serving.bench.target import Measured


@dataclass(frozen=True, slots=True)
class Slo:
    """Milliseconds; None is no objective. A request meets it with its time to first token and its mean inter-token
    time."""

    ttft_ms: float | None = None
    itl_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Spread:
    """Milliseconds over all requests (or gaps) of a run; zeros where there was none."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    seconds: float
    requests: int
    completed: int
    errors: dict[str, int]
    requests_per_second: float  # completed
    output_tokens: int
    output_tokens_per_second: float
    prompt_tokens: int | None  # as the server counted them
    cached_tokens: int | None
    ttft: Spread  # request sent to first text
    itl: Spread  # between two pieces of text; a piece may be several tokens
    tpot: Spread  # mean time per token after the first, of each request
    e2e: Spread  # request sent to the stream's end
    goodput_per_second: float | None  # requests that met every objective
    client_cpu_share: float  # of one core; above a half, this client is part of what was measured


def summarize(run: Run, slo: Slo) -> Summary:
    done = [m for m in run.measured if m.error is None]
    seconds = max(run.seconds, 1e-9)
    tokens = sum(m.tokens for m in run.measured)
    has_slo = slo.ttft_ms is not None or slo.itl_ms is not None
    return Summary(
        seconds=run.seconds,
        requests=len(run.measured),
        completed=len(done),
        errors=dict(Counter(m.error for m in run.measured if m.error is not None).most_common()),
        requests_per_second=len(done) / seconds,
        output_tokens=tokens,
        output_tokens_per_second=tokens / seconds,
        prompt_tokens=_sum([m.prompt_tokens for m in done]),
        cached_tokens=_sum([m.cached_tokens for m in done]),
        ttft=spread(ttfts(done)),
        itl=spread(gaps(done)),
        tpot=spread([t for m in done if (t := _tpot(m)) is not None]),
        e2e=spread([1e3 * (m.ended - m.sent) for m in done]),
        goodput_per_second=sum(_meets(m, slo) for m in done) / seconds if has_slo else None,
        client_cpu_share=run.client_seconds / seconds,
    )


def ttfts(done: Sequence[Measured]) -> list[float]:
    """Milliseconds to the first text, of each request that had one."""
    return [1e3 * (m.chunks[0] - m.sent) for m in done if m.chunks]


def gaps(done: Sequence[Measured]) -> list[float]:
    """Milliseconds between neighbouring pieces of text, of all requests."""
    return [1e3 * (b - a) for m in done for a, b in pairwise(m.chunks)]


def spread(values: Sequence[float]) -> Spread:
    if not values:
        return Spread(0.0, 0.0, 0.0, 0.0, 0.0)
    ordered = sorted(values)
    p50, p90, p99 = (percentile(ordered, p) for p in (50, 90, 99))
    return Spread(sum(ordered) / len(ordered), p50, p90, p99, ordered[-1])


def percentile(ordered: Sequence[float], p: float) -> float:
    """By linear interpolation between the two nearest ranks, as numpy's default does."""
    place = (len(ordered) - 1) * p / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def _tpot(measured: Measured) -> float | None:
    if measured.tokens < 2 or len(measured.chunks) < 2:
        return None
    return 1e3 * (measured.chunks[-1] - measured.chunks[0]) / (measured.tokens - 1)


def _meets(measured: Measured, slo: Slo) -> bool:
    if slo.ttft_ms is not None and not (measured.chunks and 1e3 * (measured.chunks[0] - measured.sent) <= slo.ttft_ms):
        return False
    tpot = _tpot(measured)
    return slo.itl_ms is None or tpot is None or tpot <= slo.itl_ms


def _sum(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None
