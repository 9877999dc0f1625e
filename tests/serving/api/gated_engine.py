"""A scripted engine that takes its steps when the test lets it."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from serving.engine.request import GenerateRequest, TokenEvent
from tests.fakes.engine import ScriptedEngine


class GatedEngine(ScriptedEngine):
    """Each event of each stream waits for a turn of `steps`; `ended` is set when a stream was finished or closed."""

    def __init__(self, *args: Any, **fields: Any) -> None:
        super().__init__(*args, **fields)
        self.steps = asyncio.Semaphore(0)
        self.started = asyncio.Event()
        self.ended = asyncio.Event()
        self.emitted = 0

    def let(self, steps: int) -> None:
        for _ in range(steps):
            self.steps.release()

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenEvent, None]:
        try:
            async with aclosing(super().generate(request)) as events:
                self.started.set()
                async for event in events:
                    await self.steps.acquire()
                    self.emitted += 1
                    yield event
        finally:
            self.ended.set()
