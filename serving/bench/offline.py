"""The throughput of an engine with no server around it."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from serving.bench.workload import Item
from serving.engine.client import Engine, EngineStats
from serving.engine.request import GenerateRequest, SamplingParams
from serving.errors import SetupError


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineResult:
    seconds: float
    requests: int
    prompt_tokens: int  # computed, so without those found in the prefix cache
    output_tokens: int
    output_tokens_per_second: float
    total_tokens_per_second: float
    steps: int
    milliseconds_per_step: float
    host_share: float  # of the run: planning, packing and committing
    device_wait_share: float  # of the run: the host waits for the device
    preemptions: int


def refuse_unfitting(items: Sequence[Item], max_model_len: int) -> None:
    """Raises SetupError where the window would cut an output short: less would be measured than was asked for."""
    longest = max((len(item.token_ids) + item.output_len for item in items), default=0)
    if longest > max_model_len:
        raise SetupError(
            f"--input-len and --output-len make requests of up to {longest} tokens, shared prefix and ranges included, "
            f"and the window has {max_model_len} (max_model_len): shorten them, or widen it with --max-model-len",
            param="output_len",
        )


async def measure(engine: Engine, items: Sequence[Item], on_tokens: Callable[[int], None]) -> OfflineResult:
    """All requests at once, greedy, each to its full length. Raises what the engine raises."""
    before = await engine.stats()
    start = time.perf_counter()
    counts = await asyncio.gather(*(_run(engine, i, item, on_tokens) for i, item in enumerate(items)))
    seconds = time.perf_counter() - start
    return _result(before, await engine.stats(), seconds, counts)


async def _run(engine: Engine, index: int, item: Item, on_tokens: Callable[[int], None]) -> int:
    sampling = SamplingParams(temperature=0.0, max_tokens=item.output_len)
    request = GenerateRequest(request_id=f"bench-{index}", prompt_token_ids=item.token_ids, sampling=sampling)
    count = 0
    async for event in engine.generate(request):
        count += len(event.token_ids)
        on_tokens(len(event.token_ids))
    return count


def _result(before: EngineStats, after: EngineStats, seconds: float, counts: Sequence[int]) -> OfflineResult:
    steps = after.steps - before.steps
    prompt_tokens = after.prompt_tokens - before.prompt_tokens
    return OfflineResult(
        seconds=seconds,
        requests=len(counts),
        prompt_tokens=prompt_tokens,
        output_tokens=sum(counts),
        output_tokens_per_second=sum(counts) / seconds,
        total_tokens_per_second=(sum(counts) + prompt_tokens) / seconds,
        steps=steps,
        milliseconds_per_step=1e3 * seconds / max(steps, 1),
        host_share=(after.host_seconds - before.host_seconds) / seconds,
        device_wait_share=(after.device_wait_seconds - before.device_wait_seconds) / seconds,
        preemptions=after.preemptions - before.preemptions,
    )
