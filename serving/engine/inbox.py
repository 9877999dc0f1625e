"""What comes to the engine's thread from callers on event loops, and how answers go back."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from serving.engine.adapter_lease import AdapterLease
from serving.engine.constraint import Constraint
from serving.engine.request import GenerateRequest, Pooling, TokenEvent
from serving.engine.scheduler import Scheduler
from serving.engine.shards import ShardedScheduler

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Stream:
    """The receiving end of one request: what the loop has sent and the caller has not read."""

    request: GenerateRequest
    loop: asyncio.AbstractEventLoop
    constraint: Constraint | None = None  # its grammar's
    adapter: AdapterLease | None = None
    pooling: Pooling | None = None  # its prompt becomes a vector
    arrived: deque[TokenEvent | Exception] = field(default_factory=deque)
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, item: TokenEvent | Exception) -> None:
        self.arrived.append(item)
        self.wake.set()

    async def get(self) -> TokenEvent:
        while not self.arrived:
            self.wake.clear()
            await self.wake.wait()
        item = self.arrived.popleft()
        if isinstance(item, Exception):
            raise item
        return item


@dataclass(frozen=True, slots=True, eq=False)
class Abort:
    """The caller of a stream has left it. A request id would not say which stream: a refused one may have another's."""

    stream: Stream


@dataclass(frozen=True, slots=True, eq=False)
class Question(Generic[T]):
    """What the loop's thread is to do between two steps, and who waits for the answer."""

    ask: Callable[[Scheduler | ShardedScheduler, float], T]  # of the time on the loop's clock
    loop: asyncio.AbstractEventLoop
    answer: "asyncio.Future[T]"

    def put(self, result: T | Exception) -> None:
        """On the asker's event loop."""
        if self.answer.done():  # the asker has left
            return
        if isinstance(result, Exception):
            self.answer.set_exception(result)
        else:
            self.answer.set_result(result)


def call_soon(loop: asyncio.AbstractEventLoop, call: Callable[..., None], *args: object) -> None:
    """From the engine's thread. Where a caller's event loop has gone, so have its streams: nobody is left to tell."""
    try:
        loop.call_soon_threadsafe(call, *args)
    except RuntimeError:
        if not loop.is_closed():  # asked afterwards: it may close at any moment
            raise
