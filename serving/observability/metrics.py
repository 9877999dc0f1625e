"""Prometheus metrics, under the names that dashboards for vLLM know, and weft's own.

The engine's counters come in snapshots and are read when Prometheus asks (`EngineCollector`); latencies are observed
where streams pass (`StreamMeter`).
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from serving.observability.recent import Recent
from serving.observability.tier_metrics import TIER_FIELDS, tier_metrics, with_tiers

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

# Bucket bounds in seconds, the ones that vLLM's dashboards expect.
_FIRST_TOKEN = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10,
    20,
    40,
    80,
    160,
)
_BETWEEN_TOKENS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 10, 20, 40, 80)
_WHOLE = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_TOKENS = tuple(float(m * 10**e) for e in range(6) for m in (1, 2, 5))

# Metric name -> (field of the snapshot, help). Counters are named without `_total`, which the exposition adds.
_COUNTERS = {
    "vllm:prefix_cache_queries": ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache."),
    "vllm:prefix_cache_hits": ("prefix_cache_hits", "Prompt tokens found in the prefix cache."),
    "vllm:num_preemptions": ("preemptions", "Streams whose pages were taken away to be computed again."),
    "vllm:prompt_tokens": ("prompt_tokens", "Prompt tokens computed."),
    "vllm:generation_tokens": ("generation_tokens", "Tokens generated."),
    "vllm:spec_decode_num_draft_tokens": ("guessed_tokens", "Tokens that speculation guessed at."),
    "vllm:spec_decode_num_accepted_tokens": ("accepted_tokens", "Guesses that were right."),
    "weft_deadline_drops": ("deadline_drops", "Streams ended by their deadline before anything was computed."),
    "weft_deadline_stops": ("deadline_stops", "Streams ended by their deadline later."),
    "weft_engine_steps": ("steps", "Steps of the engine."),
    "weft_host_seconds": ("host_seconds", "Seconds spent planning, packing and committing steps."),
    "weft_device_wait_seconds": ("device_wait_seconds", "Seconds spent waiting for the device."),
    "weft_grammar_queries": ("grammar_queries", "Streams that came with a grammar."),
    "weft_grammar_hits": ("grammar_hits", "Streams whose grammar was compiled already."),
    "weft_grammar_compile_seconds": ("grammar_compile_seconds", "Seconds spent compiling grammars."),
    "weft_grammar_refusals": ("grammar_refusals", "Grammars that could not be compiled."),
    "weft_grammar_fed_tokens": ("fed_tokens", "Generated tokens that a grammar left no choice for, fed and not drawn."),
    "weft_grammar_masks": ("masks", "Masks computed for grammars."),
    "weft_grammar_mask_seconds": ("mask_seconds", "Seconds spent computing masks."),
}
_GAUGES = {
    "weft_engine_start_time_seconds": ("started_at", "When the engine started, in seconds since 1970."),
    "vllm:num_requests_running": ("running", "Streams that hold pages."),
    "vllm:num_requests_waiting": ("waiting", "Streams that wait for pages."),
    "weft_free_pages": ("free_pages", "KV pages that a stream can take."),
    "weft_used_pages": ("used_pages", "KV pages held by live streams and pinned prefixes."),
    "weft_pinned_pages": ("pinned_pages", "KV pages of pinned prefixes, computed or not."),
}

_FIELDS = (*(source for source, _ in _COUNTERS.values()), *TIER_FIELDS)

Outcome = Literal["stop", "length", "abort", "error", "timeout", "content_filter"]


class EngineCollector(Collector):
    """The engine's numbers as of the last snapshot.

    Counters never fall, and count what was done for this process: they go on where a restarted engine begins again, and
    leave out what the first engine had counted before, for another API process whose counters are known.
    """

    def __init__(self, model_name: str) -> None:
        self._labels = [model_name]
        self._now: Mapping[str, Any] | None = None
        self._started_at: float | None = None  # of the engine that `_last` is of
        self._gone: set[float] = set()  # engines before it
        self._last = dict.fromkeys(_FIELDS, 0.0)
        self._offset = dict.fromkeys(_FIELDS, 0.0)  # to be added to its numbers

    @property
    def has_met_engine(self) -> bool:
        return self._started_at is not None

    def update(self, snapshot: Mapping[str, Any] | None) -> None:
        """`snapshot` has the fields of EngineStats; None where the engine does not answer."""
        snapshot = self._now = None if snapshot is None else with_tiers(snapshot)
        if snapshot is None or snapshot["started_at"] in self._gone:  # an answer that another has overtaken
            return
        if self._started_at is None:
            self._offset = {name: -snapshot[name] for name in _FIELDS}
        elif snapshot["started_at"] != self._started_at:
            self._gone.add(self._started_at)
            self._offset = {name: self._offset[name] + self._last[name] for name in _FIELDS}
            self._last = dict.fromkeys(_FIELDS, 0.0)
        self._started_at = snapshot["started_at"]
        self._last = {name: max(self._last[name], snapshot[name]) for name in _FIELDS}

    def collect(self) -> Iterator[Metric]:
        for name, (source, text) in _COUNTERS.items():
            counter = CounterMetricFamily(name, text, labels=["model_name"])
            counter.add_metric(self._labels, self._offset[source] + self._last[source])
            yield counter
        yield self._gauge("weft_engine_up", "1 where the engine answers and is ready.", self._up())
        if self._now is None:
            return
        for name, (source, text) in _GAUGES.items():
            yield self._gauge(name, text, self._now[source])
        counted = {name: self._offset[name] + self._last[name] for name in TIER_FIELDS}
        yield from tier_metrics(self._labels, counted, self._now["tiers"])
        pages = self._now["used_pages"] + self._now["free_pages"]
        usage = self._now["used_pages"] / pages if pages else 0.0
        yield self._gauge("vllm:kv_cache_usage_perc", "Share of KV pages in use; 1 is all.", usage)
        yield self._by_label(
            "weft_requests_waiting_by_class",
            "Streams that wait for pages, by class; elders are counted in vllm:num_requests_waiting alone.",
            "class",
            [(name, self._now[f"waiting_{name}"]) for name in ("interactive", "standard", "batch")],
        )
        state = [(str(self._now["state"]), 1.0)]
        yield self._by_label("weft_engine_state", "running, paused or asleep; always 1.", "state", state)
        wakes = float(self._now["wakes_on_request"])
        yield self._gauge("weft_engine_wakes_on_request", "1 where a request wakes an engine that sleeps.", wakes)
        if self._now["weights"]:
            version = [(self._now["weights"], 1.0)]
            yield self._by_label("weft_weights", "The version of the weights; always 1.", "version", version)
        if self._now["speculation"]:
            kind = [(self._now["speculation"], 1.0)]
            yield self._by_label("weft_speculation", "What guesses at tokens; always 1.", "kind", kind)
        yield self._by_label(
            "weft_tenant_service",
            "Weighted tokens over weight since the engine started, of the tenants served most.",
            "tenant",
            self._now["tenant_service"],
        )

    def describe(self) -> list[Metric]:
        return []

    def _up(self) -> float:
        return float(self._now is not None and bool(self._now["ready"]))

    def _by_label(self, name: str, text: str, label: str, values: Iterable[tuple[str, float]]) -> Metric:
        gauge = GaugeMetricFamily(name, text, labels=["model_name", label])
        for value_of, value in values:
            gauge.add_metric([*self._labels, value_of], value)
        return gauge

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        gauge = GaugeMetricFamily(name, text, labels=["model_name"])
        gauge.add_metric(self._labels, value)
        return gauge


class EngineCollectors(Collector):
    """Those of all models as one: a metric is told once, with a sample of each model."""

    def __init__(self) -> None:
        self.of: list[EngineCollector] = []

    def collect(self) -> Iterator[Metric]:
        merged: dict[str, Metric] = {}
        for engine in self.of:
            for metric in engine.collect():
                if merged.setdefault(metric.name, metric) is not metric:
                    merged[metric.name].samples += metric.samples
        yield from merged.values()

    def describe(self) -> list[Metric]:
        return []


class _Families:
    """The metrics of all models, and the registry that has them, apart from prometheus-client's global one."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self.engines = EngineCollectors()
        self.registry.register(self.engines)
        self.first_token = self._histogram(
            "vllm:time_to_first_token_seconds", "Arrival to the first token.", _FIRST_TOKEN
        )
        self.between_tokens = self._histogram(
            "vllm:inter_token_latency_seconds", "Between two deltas of a stream.", _BETWEEN_TOKENS
        )
        self.whole = self._histogram("vllm:e2e_request_latency_seconds", "Arrival to the end.", _WHOLE)
        self.queue = self._histogram(
            "vllm:request_queue_time_seconds", "Arrival at the engine to the first plan.", _WHOLE
        )
        self.prompt_tokens = self._histogram("vllm:request_prompt_tokens", "Prompt tokens of a request.", _TOKENS)
        self.output_tokens = self._histogram(
            "vllm:request_generation_tokens", "Tokens generated for a choice.", _TOKENS
        )
        self.finished = self._counter("vllm:request_success", "Choices that ended, by how.", "finished_reason")
        # Of the process: many a request is refused before it means a model.
        self.refused = Counter(
            "weft_requests_refused",
            "Requests answered with an error, by its code.",
            ["reason"],
            registry=self.registry,
        )
        self.durable = Counter(
            "weft_durable_streams",
            "What became of streams that outlive their connections.",
            ["event"],
            registry=self.registry,
        )
        self.fallbacks = self._counter(
            "weft_fallbacks", "Requests for this model that another answered.", "answered_by", "reason"
        )
        self.feedback = self._counter("weft_feedback", "Ratings of answers by clients.", "rating")
        self.embedded_texts = self._counter("weft_embedded_texts", "Texts embedded.")
        self.embedded_tokens = self._counter("weft_embedded_tokens", "Tokens of the texts embedded.")
        self.open_streams = Gauge(
            "weft_open_streams",
            "Choices of a model that this process generates.",
            ["model_name"],
            registry=self.registry,
        )

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, text, ["model_name"], buckets=buckets, registry=self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, ["model_name", *labels], registry=self.registry)


class Metrics:
    """Of one model. One registry for one API process; `of` gives those of another model in it."""

    def __init__(self, model_name: str, families: _Families | None = None) -> None:
        self._families = families = families or _Families()
        self._model_name = model_name
        self._engine = EngineCollector(model_name)
        families.engines.of.append(self._engine)
        self.registry = families.registry
        self.first_token = families.first_token.labels(model_name)
        self.between_tokens = families.between_tokens.labels(model_name)
        self.whole = families.whole.labels(model_name)
        self.queue = families.queue.labels(model_name)
        self.prompt_tokens = families.prompt_tokens.labels(model_name)
        self.output_tokens = families.output_tokens.labels(model_name)
        self.finished = {outcome: families.finished.labels(model_name, outcome) for outcome in get_args(Outcome)}
        self.open_streams = families.open_streams.labels(model_name)
        self.recent = Recent()  # for the status page

    def of(self, model_name: str) -> "Metrics":
        return Metrics(model_name, self._families)

    def refuse(self, reason: str) -> None:
        """`reason` is an error's code: a word of the server's, never one of a client's."""
        self._families.refused.labels(reason).inc()
        self.recent.refuse(reason)

    def count_durable(self, event: str) -> None:
        """`event` is one of the words of sessions/: started, ended, failed, taken_up, handed_over, undurable, ..."""
        self._families.durable.labels(event).inc()

    def embedded(self, encoder: str, texts: int, tokens: int) -> None:
        self._families.embedded_texts.labels(encoder).inc(texts)
        self._families.embedded_tokens.labels(encoder).inc(tokens)

    def rated(self, model: str, rating: str) -> None:
        """By a client, of an answer of `model`, as usage is booked under it."""
        self._families.feedback.labels(model, rating).inc()

    def fell_back(self, answered_by: str, reason: str) -> None:
        """A request for this model went to another."""
        self._families.fallbacks.labels(self._model_name, answered_by, reason).inc()

    @property
    def has_met_engine(self) -> bool:
        return self._engine.has_met_engine

    def meet_engine(self, snapshot: Mapping[str, Any]) -> None:
        """What the engine has counted before this process's first request. Only the first call counts."""
        if not self.has_met_engine:
            self._engine.update(snapshot)

    def see_engine(self, snapshot: Mapping[str, Any] | None) -> None:
        """EngineStats as a mapping, or None where the engine does not answer."""
        self._engine.update(snapshot)

    def render(self, snapshot: Mapping[str, Any] | None) -> bytes:
        """The exposition text. `snapshot` is EngineStats as a mapping, or None where the engine does not answer."""
        self._engine.update(snapshot)
        return generate_latest(self.registry)


class StreamMeter:
    """The latencies of one choice. `now` is a monotonic clock's seconds."""

    __slots__ = ("_arrival", "_ended", "_last", "_metrics", "_tokens")

    def __init__(self, metrics: Metrics, arrival: float) -> None:
        self._metrics = metrics
        self._arrival = arrival
        self._last: float | None = None
        self._tokens = 0
        self._ended = False

    def delta(self, now: float, tokens: int) -> None:
        """`tokens` so far."""
        if self._last is None:
            self._metrics.first_token.observe(now - self._arrival)
            self._metrics.recent.first_token.observe(now, now - self._arrival)
        else:
            self._metrics.between_tokens.observe(now - self._last)
            self._metrics.recent.between_tokens.observe(now, now - self._last)
        self._last = now
        self._tokens = tokens

    def end(self, now: float, outcome: Outcome) -> None:
        """Counts once, however often it is called."""
        if self._ended:
            return
        self._ended = True
        self._metrics.finished[outcome].inc()
        self._metrics.whole.observe(now - self._arrival)
        self._metrics.output_tokens.observe(self._tokens)
