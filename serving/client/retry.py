"""When a call is made again: where nothing of its answer has come, and the failure says that asking later can help."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import grpc
import grpc.aio

from serving.client.errors import ClientError, error_of

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """The server's own Retry-After is kept where it gives one; else waits grow, and are drawn at random below their
    bound so that clients which failed together do not come back together."""

    attempts: int = 3  # in all; 1: none is made again
    first_wait_seconds: float = 0.2
    longest_wait_seconds: float = 10.0

    def wait(self, attempt: int, error: ClientError) -> float:
        """Seconds before the call that follows this one; `attempt` counts from 0."""
        drawn = random.uniform(0, min(self.first_wait_seconds * 2**attempt, self.longest_wait_seconds))
        return drawn if error.retry_after is None else error.retry_after + drawn


@dataclass(frozen=True, slots=True)
class Deadline:
    """Over all attempts of a call."""

    at: float | None  # seconds of the event loop's clock

    @classmethod
    def after(cls, seconds: float | None) -> "Deadline":
        return cls(None if seconds is None else asyncio.get_running_loop().time() + seconds)

    @property
    def seconds_left(self) -> float | None:
        return None if self.at is None else max(self.at - asyncio.get_running_loop().time(), 0.0)


async def attempted(call: Callable[[float | None], Awaitable[T]], policy: RetryPolicy, deadline: Deadline) -> T:
    """`call` takes the seconds that are left. Raises the last attempt's ClientError."""
    for attempt in range(policy.attempts):
        try:
            return await call(deadline.seconds_left)
        except grpc.aio.AioRpcError as failure:
            error = error_of(failure)
            wait = policy.wait(attempt, error)
            left = deadline.seconds_left
            last = attempt + 1 >= policy.attempts
            if last or not error.retryable or (left is not None and wait >= left):
                raise error from None
        await asyncio.sleep(wait)
    raise ValueError("attempts must be at least 1")
