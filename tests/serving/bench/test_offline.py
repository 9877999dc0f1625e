"""The engine's throughput, over a scripted engine."""

import dataclasses

import pytest

from serving.bench.offline import measure, refuse_unfitting
from serving.bench.workload import Item
from serving.engine.client import EngineStats
from serving.errors import SetupError
from tests.fakes.engine import Script, ScriptedEngine


@dataclasses.dataclass
class CountingEngine(ScriptedEngine):
    """Its counters grow with each request, as a real one's do."""

    async def stats(self) -> EngineStats:
        count = len(self.requests)
        return dataclasses.replace(await super().stats(), steps=5 * count, host_seconds=0.0, prompt_tokens=3 * count)


async def test_every_request_runs_to_its_length_and_counters_are_those_of_the_run_alone() -> None:
    engine = CountingEngine(scripts=[Script(token_ids=range(100))])
    items = [Item(0.0, (i, 2, 3), "", 4 + i) for i in range(4)]
    seen: list[int] = []
    await measure(engine, items[:1], lambda _: None)
    result = await measure(engine, items, seen.append)
    assert (result.requests, result.output_tokens, result.prompt_tokens, result.steps) == (4, 22, 12, 20)
    assert sum(seen) == 22
    assert all(r.sampling.temperature == 0 and not r.sampling.eos_token_ids for r in engine.requests)


def test_an_output_that_the_window_would_cut_short_is_refused() -> None:
    items = [Item(0.0, (1, 2, 3), "", output) for output in (4, 5)]
    refuse_unfitting(items, 8)
    with pytest.raises(
        SetupError, match=r"--input-len and --output-len make requests of up to 8 tokens.* has 7 \(max_model_len"
    ):
        refuse_unfitting(items, 7)
