import random

import pytest

from serving.observability.recent import Recent, RecentCounts, RecentSeconds


def test_counts_are_those_of_the_window() -> None:
    counts = RecentCounts(window_seconds=60)
    for second in range(100):
        counts.add(1000.5 + second, "even" if second % 2 == 0 else "odd")
    assert counts.total(1099.5) == {"even": 30, "odd": 30}
    assert counts.total(1129.5) == {"even": 15, "odd": 15}
    assert counts.total(1200.0) == {}


def test_quantiles_are_within_a_twentieth_of_the_truth() -> None:
    draw = random.Random(1)
    values = [draw.lognormvariate(-3.0, 1.5) for _ in range(20_000)]
    seconds = RecentSeconds()
    for value in values:
        seconds.observe(5.0, value)
    truth = sorted(values)
    assert seconds.quantiles(6.0, (0.5, 0.99)) == pytest.approx([truth[9_999], truth[19_799]], rel=0.05)


def test_nothing_has_no_quantiles_and_what_is_old_is_forgotten() -> None:
    seconds = RecentSeconds(window_seconds=60)
    assert seconds.quantiles(0.0, (0.5,)) is None
    seconds.observe(0.0, 3.0)
    seconds.observe(30.0, 0.0)
    assert seconds.quantiles(59.0, (1.0,)) == pytest.approx([3.0], rel=0.05)
    assert seconds.quantiles(61.0, (1.0,)) == pytest.approx([1e-4], rel=0.06)
    assert seconds.quantiles(91.0, (0.5,)) is None


def test_refusals_are_counted_by_reason() -> None:
    recent = Recent(now=lambda: 7.0)
    for reason in ("a", "b", "a"):
        recent.refuse(reason)
    assert recent.refusals.total(8.0) == {"a": 2, "b": 1}
