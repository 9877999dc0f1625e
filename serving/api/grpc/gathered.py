"""What gathers while a message is on its way leaves with the next one: a write costs more than a token."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TypeVar

T = TypeVar("T")


async def gathered(source: AsyncGenerator[T, None], most: int) -> AsyncGenerator[list[T], None]:
    """All that came since the last list was taken, `most` at most: then the source waits. Closing this closes it.

    Raises what the source raises, after what came before.
    """
    pending: list[T] = []
    wake, room = asyncio.Event(), asyncio.Event()

    async def pump() -> None:
        async with aclosing(source):
            async for item in source:
                pending.append(item)
                wake.set()
                if len(pending) >= most:
                    room.clear()
                    await room.wait()

    pumping = asyncio.create_task(pump())
    pumping.add_done_callback(lambda _: wake.set())
    try:
        ended = False
        while not ended:
            await wake.wait()
            wake.clear()
            ended = pumping.done()
            taken = pending[:]
            pending.clear()
            room.set()
            if taken:
                yield taken
        await pumping
    finally:
        pumping.cancel()
        await asyncio.gather(pumping, return_exceptions=True)
