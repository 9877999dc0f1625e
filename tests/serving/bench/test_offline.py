"""The engine's throughput, over a scripted engine."""

import dataclasses

from serving.bench.offline import measure
from serving.bench.workload import Item
from serving.engine.client import EngineStats
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
