"""Drives a target with a workload: open loop at a rate, or closed loop with so many streams open."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from serving.bench.target import Measured
from serving.bench.workload import Item


@dataclass(frozen=True, slots=True)
class Run:
    measured: list[Measured]
    seconds: float  # from the first request to the last reply's end
    client_seconds: float  # CPU time of this process meanwhile


async def drive(
    send: Callable[[Item], Awaitable[Measured]],
    items: Sequence[Item],
    concurrency: int | None,
    on_done: Callable[[Measured], None] = lambda _: None,
) -> Run:
    """Each item is sent at its time, or as soon after it as `concurrency` allows."""
    slots = asyncio.Semaphore(concurrency or len(items) or 1)
    cpu_before = time.process_time()
    start = time.perf_counter()

    async def one(item: Item) -> Measured:
        try:
            measured = await send(item)
        finally:
            slots.release()
        on_done(measured)
        return measured

    running: list[asyncio.Task[Measured]] = []
    for item in items:
        delay = start + item.at - time.perf_counter()
        if delay > 0:
            await asyncio.sleep(delay)
        await slots.acquire()
        running.append(asyncio.create_task(one(item)))
    measured = list(await asyncio.gather(*running))
    return Run(measured, time.perf_counter() - start, time.process_time() - cpu_before)
