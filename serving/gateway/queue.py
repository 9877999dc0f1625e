"""The queue before the engine, bounded by what it promises: nobody is let in who would wait too long for a first token.

The waiting itself is done in the engine, whose scheduler knows classes, tenants and pages. Here stands who may join.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from serving.access import AdmissionConfig
from serving.engine.client import Engine
from serving.engine.request import Priority
from serving.errors import OverloadedError, WeftError
from serving.gateway.appointments import Appointments
from serving.gateway.ask import Ask
from serving.gateway.capacity import Capacity, Place
from serving.gateway.device_cost import DeviceCost
from serving.gateway.gateway_metrics import GatewayMetrics
from serving.gateway.ladder import Ladder, Rung
from serving.gateway.lag import Lag
from serving.gateway.principal import Principal

BEAT_SECONDS = 0.25  # between two looks at the engine, while anything is open
KEEP_SECONDS = 20.0  # between two renewals of what is open
ENGINE_ANSWER_SECONDS = 1.0
# Of a bound, the predicted seconds with which one is let in. Rates are those of the seconds before: a surge halves them
# where the engine shares its cores with what reads and refuses.
_ADMITTED = 2 / 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    wait_seconds: float  # predicted to the first token
    waiting: int  # requests without one
    rung: Rung
    is_over: bool  # the predicted wait is beyond what its class is let in with


class EngineQueue:
    def __init__(
        self,
        config: AdmissionConfig,
        metrics: GatewayMetrics,
        keep: Callable[[], Awaitable[None]],
        now: Callable[[], float] = time.monotonic,
        lag: Lag | None = None,
    ) -> None:
        """`keep` renews what is open, every KEEP_SECONDS; `lag` is the process's, whatever its models."""
        self._config = config
        self._bounds = {
            Priority.INTERACTIVE: config.interactive_seconds,
            Priority.STANDARD: config.standard_seconds,
            Priority.BATCH: config.batch_seconds,
        }
        self._longest = {priority: _ADMITTED * bound for priority, bound in self._bounds.items()}
        self._keep = keep
        self._now = now
        self._engine: Engine | None = None
        self._lag = lag or Lag(now)
        self._capacity = Capacity(now, self._lag)
        self._cost = DeviceCost()
        self._metrics = metrics
        self._model = ""
        self._ladder = Ladder(config, self._reached)
        self._appointments = Appointments(now)
        self._open = 0
        self._beat: asyncio.Task[None] | None = None
        self._asked_info = float("-inf")

    def watch(self, engine: Engine, model: str, *, can_fall_back: bool) -> None:
        """`model` is what the engine serves; another stands in for it where it `can_fall_back`."""
        self._engine, self._model = engine, model
        self._ladder = Ladder(self._config, self._reached, can_fall_back=can_fall_back)
        waits = {one.value: lambda one=one: self._capacity.predict(one) for one in Priority}
        self._metrics.watch_queue(model, waits)

    def _reached(self, rung: Rung) -> None:
        self._metrics.reached(self._model, rung, rung.name.lower())

    @contextmanager
    def preparing(self) -> Iterator[None]:
        self._capacity.preparing += 1
        try:
            yield
        finally:
            self._capacity.preparing -= 1

    @property
    def rung(self) -> Rung:
        return self._ladder.rung

    @property
    def output_cap(self) -> int | None:
        """Tokens, while the server is on the rung that caps."""
        return self._config.capped_output_tokens if self.rung >= Rung.CAP_OUTPUT else None

    def load(self, priority: Priority) -> Load:
        """As a request of this class would find it now."""
        rung, wait = self._see_load(), self._capacity.predict(priority)
        is_over = wait > self._longest[priority]
        return Load(wait_seconds=wait, waiting=self._capacity.waiting, rung=rung, is_over=is_over)

    def has_room(self, priority: Priority) -> bool:
        """Whether `knock` raises nothing."""
        load = self.load(priority)
        return not (load.is_over or self._sheds(priority, load.rung))

    def knock(self, priority: Priority) -> None:
        """Raises OverloadedError where not even a request without a prompt would be let in."""
        self._check(priority, self._capacity.predict(priority))

    async def enter(self, principal: Principal, priority: Priority, ask: Ask) -> tuple[Place, float]:
        """A place, and the predicted seconds to the first token. Raises OverloadedError."""
        await self._meet_engine()
        if not ask.generates:
            self._check(priority, 0.0)
            return self._opened(self._capacity.aside(priority)), 0.0
        predicted = self._capacity.predict(priority, principal.tenant, ask.prompt_tokens, ask.choices)
        if not ask.continues:
            self._check(priority, predicted)
        return self._opened(self._capacity.join(priority, principal.tenant, ask.prompt_tokens, ask.choices)), predicted

    def _opened(self, place: Place) -> Place:
        self._open += 1
        if self._beat is None or self._beat.done():
            self._beat = asyncio.create_task(self._look_after())
        return place

    def start(self, place: Place, principal: Principal, prompt_tokens: int, cached_tokens: int) -> None:
        self._capacity.start(place, principal.tenant, prompt_tokens, cached_tokens)

    def leave(self, place: Place) -> None:
        self._capacity.leave(place)
        self._open -= 1
        if not self._open:
            self._ladder.see(0.0)
            if self._beat is not None:
                self._beat.cancel()
                self._beat = None
                self._lag.of_timers = 0.0

    def position(self, place: Place) -> tuple[int, float]:
        """Requests before it, and the seconds that are left to its first token as predicted now."""
        return self._capacity.position(place), self._capacity.wait_of(place)

    def device_seconds(self, tokens: int) -> float:
        return self._cost.of(tokens)

    def _check(self, priority: Priority, predicted: float) -> None:
        rung, longest, bound = self._see_load(), self._longest[priority], self._bounds[priority]
        if self._sheds(priority, rung):
            raise self._refusal("batch requests are refused while others wait", "batch_shed", predicted)
        if predicted > longest:
            raise self._refusal(
                f"a {priority.value} request might now wait longer than {bound:g} seconds for its first token",
                "queue_too_long",
                predicted - longest,
            )

    def _sheds(self, priority: Priority, rung: Rung) -> bool:
        return priority is Priority.BATCH and rung >= Rung.SHED_BATCH

    def _refusal(self, message: str, code: str, soonest: float) -> OverloadedError:
        retry_after = self._appointments.next(soonest, self._capacity.streams_per_second)
        return OverloadedError(message, retry_after=retry_after, code=code)

    def _see_load(self) -> Rung:
        return self._ladder.see(self._capacity.predict(Priority.STANDARD) / self._longest[Priority.STANDARD])

    async def _meet_engine(self) -> None:
        """Its batch's size, once; a start without it is asked again, but not by everybody."""
        if self._capacity.knows_engine or self._engine is None or self._now() - self._asked_info < BEAT_SECONDS:
            return
        self._asked_info = self._now()
        try:
            async with asyncio.timeout(ENGINE_ANSWER_SECONDS):
                self._capacity.meet(await self._engine.info())
        except (WeftError, TimeoutError):
            return  # it is starting: what is submitted to it says so

    async def _look_after(self) -> None:
        kept_at = self._now()
        while True:
            await self._look()
            if self._now() - kept_at >= KEEP_SECONDS:
                kept_at = self._now()
                await self._keep()
            due = self._now() + BEAT_SECONDS
            await asyncio.sleep(BEAT_SECONDS)
            self._lag.of_timers = max(0.0, self._now() - due)

    async def _look(self) -> None:
        if self._engine is None:
            return
        try:
            async with asyncio.timeout(ENGINE_ANSWER_SECONDS):
                stats = await self._engine.stats()
        except (WeftError, TimeoutError):
            self._capacity.see(None)
            return
        self._capacity.see(stats)
        self._cost.see(stats)
        self._see_load()
