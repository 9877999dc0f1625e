"""What the tiers of the prefix cache below the device report, tier by tier."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

_TIERS = ("host", "disk")
# Metric name -> (field of TierStats, help). Counters are named without `_total`.
_COUNTERS = {
    "weft_prefix_tier_hit_tokens": ("hit_tokens", "Prompt tokens that came from a tier below the device."),
    "weft_prefix_tier_pages_in": ("pages_in", "Pages copied to a tier from the one above."),
    "weft_prefix_tier_pages_out": ("pages_out", "Pages copied from a tier to the one above."),
    "weft_prefix_tier_seconds_in": ("seconds_in", "Seconds of a thread that copied pages to a tier."),
    "weft_prefix_tier_seconds_out": ("seconds_out", "Seconds of a thread that copied pages from a tier."),
    "weft_prefix_tier_lost_pages": ("lost", "Pages that a tier could not take."),
    "weft_prefix_tier_skipped_pages": ("skipped", "Pages given up without a copy, while none was seen to come back."),
    "weft_prefix_tier_damaged_pages": ("damaged", "Page files that did not hold what they should, and were removed."),
    "weft_prefix_tier_foreign_pages": (
        "foreign",
        "Page files of another model or layout, found at a start and removed.",
    ),
}
_GAUGES = {
    "weft_prefix_tier_pages": ("pages", "Pages that a tier holds."),
    "weft_prefix_tier_room_pages": ("room", "Pages that a tier may hold."),
    "weft_prefix_tier_bytes": ("bytes", "Bytes of the pages that a tier holds."),
}

TIER_FIELDS = tuple(f"{tier}.{field}" for tier in _TIERS for field, _ in _COUNTERS.values())


def with_tiers(snapshot: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of EngineStats, with the counters of each tier by name; 0 for a tier that is not there."""
    found = {tier["tier"]: tier for tier in snapshot["tiers"]}
    flat = {
        f"{tier}.{field}": found[tier][field] if tier in found else 0.0
        for tier in _TIERS
        for field, _ in _COUNTERS.values()
    }
    return {**snapshot, **flat}


def tier_metrics(
    labels: Sequence[str], counted: Mapping[str, float], tiers: Sequence[Mapping[str, Any]]
) -> Iterator[Metric]:
    """`counted` is by TIER_FIELDS; `tiers` are those of the last snapshot."""
    named = ["model_name", "tier"]
    for name, (field, text) in _COUNTERS.items():
        counter = CounterMetricFamily(name, text, labels=named)
        for tier in tiers:
            counter.add_metric([*labels, tier["tier"]], counted[f"{tier['tier']}.{field}"])
        yield counter
    for name, (field, text) in _GAUGES.items():
        gauge = GaugeMetricFamily(name, text, labels=named)
        for tier in tiers:
            gauge.add_metric([*labels, tier["tier"]], tier[field])
        yield gauge
