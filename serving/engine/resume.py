"""An Engine whose streams outlive the engine process.

When the inner engine is lost in the middle of a stream, this one waits until it is ready again and submits prompt plus
tokens so far. The noise of a draw depends on (seed, position) alone, so the stream goes on with the tokens that would
have come: none twice, none missing.

A stream that loses one engine after another may be what kills them, so it is not continued for ever.
"""

import asyncio
import dataclasses
import logging
import math
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass

from serving.engine.client import Engine, EngineInfo, EngineStats
from serving.engine.continuation import end_reached, without_first_facts
from serving.engine.operation import Operation, OperationReport
from serving.engine.remote import ENGINE_LOST, NOT_ACCEPTED
from serving.engine.request import FinishReason, GenerateRequest, TokenEvent
from serving.errors import EngineError, EngineUnavailableError, OverloadedError, WeftError
from serving.observability.logs import log_event

LOST_REPEATEDLY = "engine_lost_repeatedly"

_SHORTEST_SECONDS = 1e-3  # of a deadline that passes while it is written: the engine will say so

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePolicy:
    deadline_seconds: float = 120.0  # from the loss to the next event; then the stream fails
    first_wait_seconds: float = 0.05
    longest_wait_seconds: float = 2.0
    max_losses: int = 5  # the loss that ends a stream, however far it got between them


class ResumingEngine:
    """Wraps `inner`. Where nobody accepted a stream (EngineUnavailableError with code `engine_unavailable`,
    OverloadedError), it is not waited for: the error is passed on, and the client may retry.

    `jitter` scales each wait (so that a thousand streams do not ask at one instant); `sleep` and `now` are the clock.
    """

    def __init__(
        self,
        inner: Engine,
        policy: ResumePolicy | None = None,
        *,
        jitter: Callable[[], float] = lambda: random.uniform(0.5, 1.0),
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._inner = inner
        self._policy = policy or ResumePolicy()
        self._jitter = jitter
        self._sleep = sleep
        self._now = now

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenEvent, None]:
        """As the inner engine's, but raises EngineUnavailableError only where nothing was accepted, or once the engine
        stayed away for longer than the deadline; and EngineError (`engine_lost_repeatedly`) at the last loss of those
        that one stream may have."""
        progress = _Progress(request, self._now)
        outage: _Outage | None = None
        while True:
            try:
                async with aclosing(self._inner.generate(progress.next_request())) as events:
                    async for event in events:
                        outage = None
                        yield progress.deliver(event)
                        if event.finish_reason is not None:
                            return
                raise EngineError(f"the engine ended stream {request.request_id} without a reason")
            except (EngineUnavailableError, OverloadedError) as error:
                outage = self._outage(error, outage, progress)
            info = await self._wait_until_ready(outage, progress)
            last = None if info is None else progress.end_reached(info.max_model_len)
            if last is None and progress.seconds_left <= 0:
                last = progress.expired()
            if last is not None:
                yield last
                return

    def _outage(self, error: WeftError, outage: "_Outage | None", progress: "_Progress") -> "_Outage":
        """The outage that goes on, or the one that begins. Raises `error` where it cannot be waited for."""
        accepted = isinstance(error, EngineUnavailableError) and error.code != NOT_ACCEPTED
        if accepted:
            progress.losses += 1
            if progress.losses >= self._policy.max_losses:
                raise EngineError(
                    f"the engine was lost {progress.losses} times in this stream, which is not tried again",
                    code=LOST_REPEATEDLY,
                ) from error
        if outage is not None:
            return outage
        if not (accepted or progress.started):
            raise error
        log_event(log, "stream lost its engine", level=logging.WARNING, request_id=progress.request_id, code=error.code)
        return _Outage(self._now() + self._policy.deadline_seconds, self._policy.first_wait_seconds, error)

    async def _wait_until_ready(self, outage: "_Outage", progress: "_Progress") -> EngineInfo | None:
        """None where the stream's own deadline passes first."""
        while True:
            left = outage.deadline - self._now()
            if progress.seconds_left <= 0:
                return None
            if left <= 0:
                raise EngineUnavailableError(
                    f"the engine did not come back within {self._policy.deadline_seconds:g} s", code=ENGINE_LOST
                ) from outage.cause
            await self._sleep(min(outage.wait * self._jitter(), left, progress.seconds_left))
            outage.wait = min(outage.wait * 2, self._policy.longest_wait_seconds)
            try:
                return await self._inner.info()
            except EngineUnavailableError as error:
                outage.cause = error

    async def info(self) -> EngineInfo:
        return await self._inner.info()

    async def stats(self) -> EngineStats:
        return await self._inner.stats()

    async def operate(self, operation: Operation) -> OperationReport:
        return await self._inner.operate(operation)

    async def close(self) -> None:
        await self._inner.close()


@dataclass(slots=True)
class _Outage:
    """From a loss to the next event, however many attempts that takes."""

    deadline: float
    wait: float
    cause: WeftError


class _Progress:
    """What one stream has delivered."""

    def __init__(self, request: GenerateRequest, now: Callable[[], float]) -> None:
        self.request_id = request.request_id
        self.started = False  # an event was delivered
        self.losses = 0  # of engines that had accepted it
        self._request = request
        self._now = now
        self._expires_at = math.inf if request.deadline_seconds is None else now() + request.deadline_seconds
        self._attempts = 0
        self._delivered: list[int] = []

    @property
    def seconds_left(self) -> float:
        """Until the stream's deadline, which a new engine does not renew."""
        return self._expires_at - self._now()

    def expired(self) -> TokenEvent:
        return TokenEvent(request_id=self.request_id, finish_reason=FinishReason.DEADLINE)

    def next_request(self) -> GenerateRequest:
        """What to submit now: at first the request itself, then its continuation under a fresh id."""
        self._attempts += 1
        if self._attempts == 1:
            return self._request
        sampling = self._request.sampling
        if self.started and sampling.prompt_logprobs is not None:
            sampling = dataclasses.replace(sampling, prompt_logprobs=None)
        return dataclasses.replace(
            self._request,
            request_id=f"{self.request_id}~{self._attempts}",
            sampling=sampling,
            output_token_ids=(*self._request.output_token_ids, *self._delivered),
            deadline_seconds=None if math.isinf(self._expires_at) else max(self.seconds_left, _SHORTEST_SECONDS),
        )

    def deliver(self, event: TokenEvent) -> TokenEvent:
        """The event as the client sees it: under its own id, and with first-event facts only once."""
        self._delivered += event.token_ids
        if self._attempts == 1:
            self.started = True
            return event
        if self.started:
            event = without_first_facts(event)
        self.started = True
        return dataclasses.replace(event, request_id=self.request_id)

    def end_reached(self, max_model_len: int) -> TokenEvent | None:
        return end_reached(self._request, self._delivered, max_model_len)
