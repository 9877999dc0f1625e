import asyncio
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from serving.engine.client import EngineStats
from serving.engine.operation import EngineState
from serving.errors import EngineUnavailableError, SetupError, WeftError
from tests.fakes.engine import ScriptedEngine
from tests.serving.api.conftest import MODEL, Api, ApiMaker, chat_body


class AilingEngine(ScriptedEngine):
    """Its stats are what the test says: an answer, an error, or silence."""

    answer: EngineStats | Exception | None

    async def stats(self) -> EngineStats:
        if self.answer is None:
            await asyncio.Event().wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        assert self.answer is not None
        return self.answer


@pytest.fixture
async def ailing(make_api: ApiMaker) -> Api:
    engine = AilingEngine()
    engine.answer = await ScriptedEngine().stats()
    return make_api(make_api.says("x"), health=engine)


def _engine(api: Api) -> AilingEngine:
    engine = api.service.engine
    assert isinstance(engine, AilingEngine)
    return engine


async def _samples(api: Api) -> dict[str, float]:
    """Each sample of /metrics by its name and its labels beside model_name."""
    reply = await api.get("/metrics")
    assert reply.status_code == 200
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    samples: dict[str, float] = {}
    for family in text_string_to_metric_families(reply.text):
        for sample in family.samples:
            assert sample.labels.get("model_name", MODEL) == MODEL
            rest = ",".join(value for key, value in sorted(sample.labels.items()) if key != "model_name")
            samples[f"{sample.name}{{{rest}}}" if rest else sample.name] = sample.value
    return samples


async def test_metrics_name_the_engines_state(ailing: Api) -> None:
    engine = _engine(ailing)
    engine.answer = replace(await engine.stats(), state=EngineState.PAUSED)
    assert (await _samples(ailing))["weft_engine_state{paused}"] == 1


async def test_an_engine_that_requests_wake_is_ready_in_its_sleep(ailing: Api) -> None:
    engine = _engine(ailing)
    engine.answer = replace(await engine.stats(), state=EngineState.ASLEEP, wakes_on_request=True)
    reply = await ailing.get("/health/ready")
    assert (reply.status_code, reply.json()["status"]) == (200, "asleep")


@pytest.mark.parametrize("path", ["/health", "/health/ready"])
async def test_ready_is_what_the_engine_says_now(ailing: Api, path: str) -> None:
    assert (await ailing.get(path)).status_code == 200
    stats = await _engine(ailing).stats()
    for answer, code in (
        (replace(stats, ready=False), "engine_not_ready"),
        (replace(stats, state=EngineState.PAUSED), "engine_paused"),
        (replace(stats, state=EngineState.ASLEEP), "engine_asleep"),
        (EngineUnavailableError("the engine restarts", code="engine_lost"), "engine_lost"),
    ):
        _engine(ailing).answer = answer
        reply = await ailing.get(path)
        assert reply.status_code == 503
        assert reply.json()["error"]["code"] == code
        assert reply.headers["retry-after"]
    _engine(ailing).answer = stats
    assert (await ailing.get(path)).status_code == 200


async def test_an_engine_that_does_not_answer_is_not_ready(ailing: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.api.health.ENGINE_ANSWER_SECONDS", 0.0)
    _engine(ailing).answer = None
    reply = await ailing.get("/health/ready")
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "engine_silent")


async def test_live_says_only_that_this_process_answers(ailing: Api) -> None:
    _engine(ailing).answer = EngineUnavailableError("gone")
    assert (await ailing.get("/health/live")).json() == {"status": "live"}


async def test_metrics_have_the_names_that_dashboards_know(ailing: Api) -> None:
    await ailing.get("/metrics")
    stats = await _engine(ailing).stats()
    _engine(ailing).answer = replace(
        stats, running=3, waiting=2, used_pages=25, free_pages=75, prefix_cache_queries=100, prefix_cache_hits=40
    )
    await ailing.post("/v1/chat/completions", chat_body())
    samples = await _samples(ailing)
    assert samples["vllm:num_requests_running"] == 3
    assert samples["vllm:num_requests_waiting"] == 2
    assert samples["vllm:kv_cache_usage_perc"] == 0.25
    assert samples["vllm:prefix_cache_queries_total"] == 100
    assert samples["vllm:prefix_cache_hits_total"] == 40
    assert samples["vllm:request_success_total{stop}"] == 1
    assert samples["vllm:time_to_first_token_seconds_count"] == 1
    assert samples["vllm:inter_token_latency_seconds_count"] == 1
    assert samples["vllm:e2e_request_latency_seconds_count"] == 1
    assert samples["vllm:request_queue_time_seconds_count"] == 1
    assert samples["weft_open_streams"] == 0
    for name in ("num_preemptions", "prompt_tokens", "generation_tokens"):
        assert f"vllm:{name}_total" in samples
    for name in ("host_seconds", "device_wait_seconds"):
        assert f"weft_{name}_total" in samples


@pytest.mark.parametrize("failure", [EngineUnavailableError("gone"), SetupError("it is of another version")])
async def test_metrics_are_there_while_the_engine_is_not(ailing: Api, failure: WeftError) -> None:
    await ailing.get("/metrics")
    stats = await _engine(ailing).stats()
    _engine(ailing).answer = replace(stats, generation_tokens=50, running=1)
    assert (await _samples(ailing))["weft_engine_up"] == 1
    _engine(ailing).answer = failure
    samples = await _samples(ailing)
    assert samples["weft_engine_up"] == 0
    assert samples["vllm:generation_tokens_total"] == 50
    assert "vllm:num_requests_running" not in samples


async def test_refusals_are_counted_by_reason(ailing: Api) -> None:
    await ailing.post("/v1/chat/completions", chat_body(suffix="x"))
    await ailing.post("/v1/chat/completions", chat_body(n="x"))
    await ailing.get("/nothing")
    samples = await _samples(ailing)
    assert samples["weft_requests_refused_total{unknown_parameter}"] == 1
    assert samples["weft_requests_refused_total{invalid_value}"] == 1
    assert samples["weft_requests_refused_total{unknown_url}"] == 1
