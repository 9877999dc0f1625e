"""Whether an engine takes requests now, for those who would otherwise ask another model's."""

import asyncio
import time
from collections.abc import Callable

from serving.engine.client import Engine, EngineStats
from serving.engine.operation import EngineState
from serving.errors import WeftError

_PAUSE_SECONDS = 0.1
_ANSWER_SECONDS = 2.0


def takes_requests(stats: EngineStats) -> bool:
    asleep = stats.state == EngineState.ASLEEP and stats.wakes_on_request
    return stats.ready and (asleep or stats.state == EngineState.RUNNING)


class EngineWatch:
    """Those who ask at once share one question. No answer is kept: an engine can die in the moment after it."""

    def __init__(self, engine: Engine, now: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._now = now
        self._asking: asyncio.Task[bool] | None = None

    async def is_up(self, patience: float = 0.0) -> bool:
        """Now, or within so many seconds."""
        deadline = self._now() + patience
        while not await self._look():
            if self._now() >= deadline:
                return False
            await asyncio.sleep(_PAUSE_SECONDS)
        return True

    async def _look(self) -> bool:
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask())
        return await asyncio.shield(self._asking)

    async def _ask(self) -> bool:
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                return takes_requests(await self._engine.stats())
        except (WeftError, TimeoutError):
            return False
        finally:
            self._asking = None
