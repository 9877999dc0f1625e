from contextlib import aclosing
from dataclasses import asdict, replace

from serving.api.metered_engine import MeteredEngine
from serving.engine.client import EngineStats
from serving.engine.request import GenerateRequest, SamplingParams
from serving.errors import EngineUnavailableError
from serving.observability.metrics import Metrics
from tests.fakes.engine import Script, ScriptedEngine

REQUEST = GenerateRequest(request_id="r", prompt_token_ids=(1,), sampling=SamplingParams(max_tokens=9))


async def test_the_events_pass_unchanged_and_the_wait_is_observed_once() -> None:
    inner = ScriptedEngine([Script(token_ids=[1, 2, 3])])
    metrics = Metrics("m")
    events = [event async for event in MeteredEngine(inner, metrics).generate(REQUEST)]
    assert events == [event async for event in inner.generate(REQUEST)]
    assert b'vllm:request_queue_time_seconds_count{model_name="m"} 1.0' in metrics.render(None)


async def test_closing_it_closes_the_engines_stream() -> None:
    inner = ScriptedEngine([Script(token_ids=[1, 2, 3])])
    async with aclosing(MeteredEngine(inner, Metrics("m")).generate(REQUEST)) as events:
        await anext(events)
    assert inner.closed == ["r"]


async def test_what_it_does_not_measure_it_passes_on() -> None:
    inner = ScriptedEngine()
    metered = MeteredEngine(inner, Metrics("m"))
    assert await metered.info() == await inner.info()
    assert await metered.stats() == await inner.stats()


class Counting(ScriptedEngine):
    """Has generated a thousand tokens before, and is away at first."""

    away = True

    async def stats(self) -> EngineStats:
        if self.away:
            raise EngineUnavailableError("away")
        return replace(await super().stats(), generation_tokens=1000 + len(self.finished))


async def test_what_the_engine_had_counted_before_the_first_stream_is_left_out() -> None:
    inner = Counting([Script(token_ids=[1])])
    metrics = Metrics("m")
    metered = MeteredEngine(inner, metrics)
    assert len([event async for event in metered.generate(REQUEST)]) == 1
    assert not metrics.has_met_engine
    inner.away = False
    for _ in range(2):
        assert len([event async for event in metered.generate(REQUEST)]) == 1
    rendered = metrics.render(asdict(await inner.stats()))
    assert b'vllm:generation_tokens_total{model_name="m"} 2.0' in rendered
