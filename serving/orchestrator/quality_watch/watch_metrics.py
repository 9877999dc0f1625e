"""What the quality watch tells."""

from prometheus_client import CollectorRegistry, Counter, Gauge


class QualityWatchMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.asked = Counter(
            "weft_quality_canaries", "Canary prompts asked, by outcome.", ["outcome"], registry=registry
        )
        self.score = Gauge(
            "weft_quality_score", "Of the canary's last answer, from 0 to 1.", ["canary"], registry=registry
        )
        self.drift = Gauge(
            "weft_quality_drift",
            "Mean of usual score less last score, over the canaries scored so far; above 0 is worse than usual.",
            registry=registry,
        )
