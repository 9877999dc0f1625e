import asyncio
from dataclasses import asdict, fields, replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from serving.engine.client import EngineStats
from serving.engine.operation import EngineState
from serving.engine.tiers.stats import TierStats
from serving.observability.metrics import Metrics, StreamMeter
from tests.fakes.engine import ScriptedEngine


def _stats(**values: float) -> EngineStats:
    return replace(asyncio.run(ScriptedEngine().stats()), **values)


def _render(metrics: Metrics, stats: EngineStats | None) -> dict[str, float]:
    text = metrics.render(None if stats is None else asdict(stats)).decode()
    return {
        sample.name + "".join(f"/{value}" for key, value in sorted(sample.labels.items()) if key != "model_name"): (
            sample.value
        )
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_every_number_of_the_engine_is_exposed() -> None:
    """A field of EngineStats that nobody can see would be one too many."""
    base = _stats(started_at=1, free_pages=50, used_pages=50)
    before = _render(_met(), base)
    for field in fields(EngineStats):
        words = {"state": EngineState.PAUSED, "weights": "fp_7", "speculation": "ngram"}
        others = {"ready": not base.ready, "tenant_service": (("a", 7.0),), "tiers": (_tier(),)}
        value = (words | others).get(field.name, 7)
        changed = replace(base, **{field.name: value})
        assert _render(_met(), changed) != before, field.name


def _tier(tier: str = "host", **values: int) -> TierStats:
    return TierStats(**{"tier": tier, "pages": 1, "room": 2, "bytes": 3, **values})  # pyright: ignore


def test_each_tier_of_the_prefix_cache_counts_on_over_a_restart() -> None:
    metrics = _met()
    seen = [
        _render(metrics, replace(_stats(started_at=start), tiers=tiers))
        for start, tiers in [
            (1, (_tier(hit_tokens=64, pages_in=5), _tier("disk", damaged=1))),
            (2, (_tier(hit_tokens=32, pages=9), _tier("disk"))),
            (3, ()),
        ]
    ]
    hits = "weft_prefix_tier_hit_tokens_total/host"
    assert [samples.get(hits) for samples in seen] == [64, 96, None]
    assert seen[1]["weft_prefix_tier_pages/host"] == 9
    assert seen[1]["weft_prefix_tier_damaged_pages_total/disk"] == 1


def _met(**counted: float) -> Metrics:
    """Metrics of a process that began with an engine which had `counted` so much."""
    metrics = Metrics("m")
    metrics.meet_engine(asdict(_stats(started_at=1, **counted)))
    return metrics


def test_counters_go_on_where_a_restarted_engine_begins_again() -> None:
    metrics = _met()
    seen = [
        _render(metrics, _stats(started_at=start, generation_tokens=tokens, steps=steps, preemptions=preemptions))
        for start, tokens, steps, preemptions in [
            (1, 10, 5, 1),
            (1, 25, 9, 1),
            (2, 4, 2, 0),
            (2, 30, 20, 0),
            (3, 2, 1, 0),
        ]
    ]
    assert [samples["vllm:generation_tokens_total"] for samples in seen] == [10, 25, 29, 55, 57]
    assert [samples["weft_engine_steps_total"] for samples in seen] == [5, 9, 11, 29, 30]
    assert [samples["vllm:num_preemptions_total"] for samples in seen] == [1, 1, 1, 1, 1]


def test_a_restart_is_seen_even_where_every_counter_has_overtaken_the_last() -> None:
    metrics = _met()
    _render(metrics, _stats(started_at=1, generation_tokens=10, prompt_tokens=100))
    samples = _render(metrics, _stats(started_at=2, generation_tokens=12, prompt_tokens=105))
    assert samples["vllm:generation_tokens_total"] == 22
    assert samples["vllm:prompt_tokens_total"] == 205
    assert samples["weft_engine_start_time_seconds"] == 2


def test_what_the_engine_counted_before_this_process_is_not_counted_again() -> None:
    metrics = _met(generation_tokens=1000)
    metrics.meet_engine(asdict(_stats(started_at=1, generation_tokens=1005)))  # of a second first request
    seen = [
        _render(metrics, _stats(started_at=start, generation_tokens=tokens))["vllm:generation_tokens_total"]
        for start, tokens in [(1, 1000), (1, 1010), (2, 0), (2, 7)]
    ]
    assert seen == [0, 10, 10, 17]


def test_counters_never_fall_where_answers_overtake_each_other() -> None:
    metrics = _met()
    seen = [
        _render(metrics, _stats(started_at=start, generation_tokens=tokens))["vllm:generation_tokens_total"]
        for start, tokens in [(1, 10), (1, 8), (2, 3), (1, 12), (2, 4)]
    ]
    assert seen == [10, 10, 13, 13, 14]


def test_asking_twice_counts_once() -> None:
    metrics = _met()
    stats = _stats(started_at=1, generation_tokens=10)
    assert _render(metrics, stats)["vllm:generation_tokens_total"] == 10
    assert _render(metrics, stats)["vllm:generation_tokens_total"] == 10


def test_counters_stay_while_the_engine_is_away_and_gauges_go() -> None:
    metrics = _met()
    _render(metrics, _stats(started_at=1, generation_tokens=10, running=2))
    away = _render(metrics, None)
    assert away["vllm:generation_tokens_total"] == 10
    assert away["weft_engine_up"] == 0
    assert "vllm:num_requests_running" not in away
    assert "vllm:kv_cache_usage_perc" not in away


def test_two_registries_share_nothing() -> None:
    first, second = Metrics("a"), Metrics("b")
    first.refuse("reason")
    assert "weft_requests_refused_total/reason" in _render(first, None)
    assert "weft_requests_refused_total/reason" not in _render(second, None)


def test_a_stream_is_measured_from_its_arrival_between_its_deltas_and_to_its_end() -> None:
    metrics = Metrics("m")
    meter = StreamMeter(metrics, arrival=100.0)
    meter.delta(100.5, 1)
    meter.delta(100.6, 2)
    meter.delta(101.0, 5)
    meter.end(101.5, "stop")
    meter.end(200.0, "abort")
    samples = _render(metrics, None)
    assert samples["vllm:time_to_first_token_seconds_sum"] == pytest.approx(0.5)
    assert samples["vllm:inter_token_latency_seconds_count"] == 2
    assert samples["vllm:inter_token_latency_seconds_sum"] == pytest.approx(0.5)
    assert samples["vllm:e2e_request_latency_seconds_sum"] == pytest.approx(1.5)
    assert samples["vllm:request_generation_tokens_sum"] == 5
    assert samples["vllm:request_success_total/stop"] == 1
    assert samples["vllm:request_success_total/abort"] == 0


def test_the_queue_is_shown_by_class_and_service_by_tenant() -> None:
    stats = _stats(started_at=1, waiting_batch=3)
    found = _render(_met(), replace(stats, tenant_service=(("acme", 12.5), ("", 2.0))))
    assert found["weft_requests_waiting_by_class/batch"] == 3
    assert found["weft_requests_waiting_by_class/interactive"] == 0
    assert (found["weft_tenant_service/acme"], found["weft_tenant_service/"]) == (12.5, 2.0)
