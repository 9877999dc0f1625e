"""A run as one SVG: how long the first token and the gaps took, and tokens per second over time."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from serving.bench.load import Run
from serving.bench.summary import gaps, ttfts

_WIDTH, _HEIGHT = 380, 240  # of a panel
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 14, 36, 40
_INK, _GRID, _LINE = "#333", "#ddd", "#1f6f8b"
_MOST_POINTS = 400


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    x_label: str
    y_label: str
    points: list[tuple[float, float]]
    steps: bool = False  # a value holds until the next point


def picture(run: Run, title: str) -> str:
    """An SVG document."""
    done = [m for m in run.measured if m.error is None]
    panels = [
        Panel("Time to first token", "milliseconds", "share of requests", distribution(ttfts(done))),
        Panel("Between tokens", "milliseconds", "share of gaps", distribution(gaps(done))),
        Panel("Output over time", "seconds", "pieces of text per second", throughput(run), steps=True),
    ]
    width, height = _WIDTH * len(panels), _HEIGHT + 30
    body = "".join(f'<g transform="translate({i * _WIDTH},30)">{_panel(panel)}</g>' for i, panel in enumerate(panels))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'font-family="sans-serif" font-size="11" fill="{_INK}"><rect width="100%" height="100%" fill="white"/>'
        f'<text x="{_LEFT}" y="22" font-size="14">{escape(title)}</text>{body}</svg>\n'
    )


def distribution(values: Sequence[float]) -> list[tuple[float, float]]:
    """The cumulative distribution: (value, share of values at or below it), thinned to a few hundred points."""
    ordered = sorted(values)
    count = len(ordered)
    picked = (
        range(count) if count <= _MOST_POINTS else [i * (count - 1) // _MOST_POINTS for i in range(_MOST_POINTS + 1)]
    )
    return [(ordered[i], (i + 1) / count) for i in picked]


def throughput(run: Run) -> list[tuple[float, float]]:
    """(second, pieces of text per second) in up to 60 equal slices of the run."""
    times = [at for m in run.measured for at in m.chunks]
    if not times or run.seconds <= 0:
        return []
    start = min(m.sent for m in run.measured)
    slices = max(1, min(60, round(run.seconds / 0.25)))
    width = run.seconds / slices
    counts = [0] * slices
    for at in times:
        counts[min(int((at - start) / width), slices - 1)] += 1
    return [(i * width, count / width) for i, count in enumerate(counts)] + [(run.seconds, counts[-1] / width)]


def _panel(panel: Panel) -> str:
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    x_top = nice_ceiling(max((x for x, _ in panel.points), default=1.0))
    y_top = nice_ceiling(max((y for _, y in panel.points), default=1.0))

    def x_at(value: float) -> float:
        return round(_LEFT + (right - _LEFT) * value / x_top, 2)

    def y_at(value: float) -> float:
        return round(bottom - (bottom - _TOP) * value / y_top, 2)

    parts = [f'<text x="{_LEFT}" y="{_TOP - 12}" font-size="12" font-weight="bold">{escape(panel.title)}</text>']
    for i in range(5):
        x, y = x_top * i / 4, y_top * i / 4
        parts.append(f'<path d="M{_LEFT} {y_at(y)}H{right}M{x_at(x)} {_TOP}V{bottom}" stroke="{_GRID}" fill="none"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y_at(y) + 4}" text-anchor="end">{y:g}</text>')
        parts.append(f'<text x="{x_at(x)}" y="{bottom + 15}" text-anchor="middle">{x:g}</text>')
    parts.append(
        f'<text x="{(_LEFT + right) / 2}" y="{bottom + 32}" text-anchor="middle">{escape(panel.x_label)}</text>'
    )
    middle = (_TOP + bottom) / 2
    turned = f'transform="rotate(-90 12 {middle})"'
    parts.append(f'<text x="12" y="{middle}" text-anchor="middle" {turned}>{escape(panel.y_label)}</text>')
    if panel.points:
        path = _path([(x_at(x), y_at(y)) for x, y in panel.points], steps=panel.steps)
        parts.append(f'<path d="{path}" stroke="{_LINE}" stroke-width="1.8" fill="none"/>')
    else:
        parts.append(f'<text x="{(_LEFT + right) / 2}" y="{middle}" text-anchor="middle">nothing measured</text>')
    return "".join(parts)


def _path(points: Sequence[tuple[float, float]], *, steps: bool) -> str:
    path = f"M{points[0][0]} {points[0][1]}"
    for (_, before), (x, y) in pairwise(points):
        path += f"L{x} {before}V{y}" if steps else f"L{x} {y}"
    return path


def nice_ceiling(value: float) -> float:
    """The least of 1, 2, 4, 5, 8 or 10 times a power of ten that is not below `value`; 1 for nothing."""
    if value <= 0:
        return 1.0
    power = 1.0
    while power * 10 < value:
        power *= 10
    while power > value:
        power /= 10
    return next(power * step for step in (1, 2, 4, 5, 8, 10) if power * step >= value)
