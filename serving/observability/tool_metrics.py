"""Numbers of tools that run here."""

from prometheus_client import CollectorRegistry, Counter, Histogram

_SECONDS = (0.001, 0.01, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)


class ToolMetrics:
    """`tool` is a name that the deployment gives, never the model."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._calls = Counter(
            "weft_tool_calls",
            "Calls of tools that ran here: ok, error (the model was told why), or timeout.",
            ["tool", "outcome"],
            registry=registry,
        )
        self._seconds = Histogram(
            "weft_tool_seconds",
            "Seconds that a call of a tool took.",
            ["tool"],
            buckets=_SECONDS,
            registry=registry,
        )

    def note(self, tool: str, outcome: str, seconds: float) -> None:
        self._calls.labels(tool, outcome).inc()
        self._seconds.labels(tool).observe(seconds)
