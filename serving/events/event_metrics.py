"""What the event log tells of itself."""

from prometheus_client import CollectorRegistry, Counter, Gauge


class EventMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.written = Counter("weft_events", "Events written to the outbox.", registry=registry)
        self.lost = Counter(
            "weft_events_lost",
            "Events that are missing: queue_full (the outbox took none for too long) or unshipped (they went before).",
            ["reason"],
            registry=registry,
        )
        for reason in ("queue_full", "unshipped"):
            self.lost.labels(reason)
        self.failures = Counter("weft_event_write_failures", "Writes of the outbox that failed.", registry=registry)
        self.ship_failures = Counter(
            "weft_event_ship_failures", "Batches of events that Redis did not take.", registry=registry
        )
        self.waiting = Gauge(
            "weft_events_waiting",
            "Events of the outbox that wait to be shipped; 0 in all processes but one.",
            registry=registry,
        )
