"""What the gateway counts. Tenants that the deployment names have a label of their own, and so have the first others;
the rest are "other": a name that comes with a token must not be able to make a new time series for ever."""

from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge

MOST_UNNAMED_TENANTS = 50
OTHER = "other"

TokenKind = Literal["prompt", "cached", "output"]


class GatewayMetrics:
    def __init__(self, registry: CollectorRegistry | None = None, tenants: Iterable[str] = ()) -> None:
        registry = registry or CollectorRegistry()
        self._named = set(tenants)
        self._unnamed: set[str] = set()
        self._requests = Counter(
            "weft_tenant_requests",
            "Requests that a tenant made, by what became of them.",
            ["tenant", "outcome"],
            registry=registry,
        )
        self._tokens = Counter(
            "weft_tenant_tokens",
            "Tokens that a tenant used; cached ones are among those of the prompt.",
            ["tenant", "kind"],
            registry=registry,
        )
        self._refusals = Counter(
            "weft_admission_refusals", "Requests that the gateway refused, by reason.", ["reason"], registry=registry
        )
        self._rung = Gauge("weft_degradation_rung", "0 normal .. 4 refuse.", ["model_name"], registry=registry)
        self._rungs = Counter(
            "weft_degradation_changes", "Times that a rung was reached.", ["model_name", "rung"], registry=registry
        )
        self._wait = Gauge(
            "weft_predicted_wait_seconds",
            "To the first token of a request that came now, by class.",
            ["model_name", "priority"],
            registry=registry,
        )
        self._store_up = Gauge("weft_limit_store_up", "1 where the store of limits answers.", registry=registry)
        self._store_up.set(1)
        self.store_failures = Counter(
            "weft_limit_store_failures", "Demands that the store of limits did not take.", registry=registry
        )
        self.ledger_failures = Counter(
            "weft_usage_write_failures", "Writes of the usage ledger that failed.", registry=registry
        )
        self.ledger_dropped = Counter("weft_usage_rows_dropped", "Rows of usage that were given up.", registry=registry)

    def admitted(self, tenant: str) -> None:
        self._requests.labels(self._label(tenant), "admitted").inc()

    def refused(self, tenant: str, reason: str) -> None:
        self._requests.labels(self._label(tenant), "refused").inc()
        self._refusals.labels(reason).inc()

    def used(self, tenant: str, kind: TokenKind, tokens: int) -> None:
        self._tokens.labels(self._label(tenant), kind).inc(tokens)

    def reached(self, model: str, rung: int, name: str) -> None:
        self._rung.labels(model).set(rung)
        self._rungs.labels(model, name).inc()

    def watch_queue(self, model: str, waits: Mapping[str, Callable[[], float]]) -> None:
        """`waits` by class."""
        self._rung.labels(model).set(0)
        for priority, wait in waits.items():
            self._wait.labels(model, priority).set_function(wait)

    def watch_store(self, is_up: Callable[[], bool]) -> None:
        self._store_up.set_function(is_up)

    def _label(self, tenant: str) -> str:
        if tenant in self._named or tenant in self._unnamed:
            return tenant
        if len(self._unnamed) < MOST_UNNAMED_TENANTS:
            self._unnamed.add(tenant)
            return tenant
        return OTHER
