"""What moderation counts. No label holds a client's words: categories, judges and actions are the deployment's."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class ModerationMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.verdicts = Counter(
            "weft_moderation_verdicts",
            "Inputs and stretches of answers judged, by what became of them.",
            ["direction", "outcome"],
            registry=registry,
        )
        self.findings = Counter(
            "weft_moderation_findings",
            "Findings that reached a policy's threshold.",
            ["direction", "category", "action"],
            registry=registry,
        )
        self.failures = Counter(
            "weft_moderation_judge_failures",
            "Times that a judge failed or took too long; failed open lets through, failed closed does not.",
            ["judge", "on_failure"],
            registry=registry,
        )
        self.seconds = Histogram(
            "weft_moderation_judge_seconds", "Of one passage.", ["judge"], buckets=_SECONDS, registry=registry
        )
        self.routed = Counter(
            "weft_moderation_routed", "Records left for a person, by outcome.", ["outcome"], registry=registry
        )
        self.reviews = Gauge(
            "weft_moderation_reviews",
            "Records in the file of those left for a person: waiting, or what the person said of the finding.",
            ["category", "state"],
            registry=registry,
        )
        self.canaries = Counter(
            "weft_moderation_canaries", "Benign texts judged, by outcome.", ["outcome"], registry=registry
        )
        self.false_positives = Gauge(
            "weft_moderation_false_positive_ratio",
            "Share of the benign texts of the last round that were stopped, by category; `any` is all of them.",
            ["category"],
            registry=registry,
        )
