"""The one door: every protocol calls `authenticate`, and `admit` around what it submits.

    principal = await gateway.authenticate(Credentials.of(headers))
    principal.require(Scope.INFERENCE)
    gateway.knock(principal, wished)            # before the prompt is read: refuses at once what is sure to be refused
    with gateway.preparing():
        prepared = [await generator.prepare(request)]
    async with gateway.admit(principal, Ask.of(prepared, model=name, stream=True)) as lease:
        async for delta in generator.stream(prepared[0]): ...

A refusal is a WeftError with `code`, `retry_after` where asking again can help, and `metadata`: the rate-limit values,
as HTTP headers or gRPC trailers. The engine below is guarded: what was not admitted does not reach it.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager

from serving.access import AccessConfig
from serving.engine.client import Engine
from serving.engine.embedding import Embedder
from serving.engine.request import Priority
from serving.errors import OverloadedError, RateLimitedError, WeftError
from serving.gateway.ask import Ask
from serving.gateway.gateway_metrics import GatewayMetrics
from serving.gateway.guard import GuardedEmbedder, GuardedEngine
from serving.gateway.identity import Identity
from serving.gateway.key_store import KeyStore
from serving.gateway.ladder import Rung
from serving.gateway.lag import Lag
from serving.gateway.lease import Lease, QueueNotice
from serving.gateway.ledger import Ledger, UsageRow
from serving.gateway.limit_store import Demand, LimitName, LimitStore, Verdict, is_limited
from serving.gateway.memory_store import MemoryStore
from serving.gateway.principal import Credentials, Principal
from serving.gateway.queue import EngineQueue, Load
from serving.gateway.rate_fields import DEGRADED, PREDICTED_WAIT, rate_fields
from serving.gateway.surviving_store import SurvivingStore
from serving.gateway.tier_rules import check_tier, class_of, output_cap, reserved_tokens

DRAIN_RETRY_SECONDS = 5.0
_MEMORY = 0.1  # weight of the newest request in the mean of how long one lasts
_MOST_REMEMBERED = 10_000  # tenants that were refused
_SHOWN: dict[LimitName, str] = {
    "requests_per_minute": "requests per minute",
    "tokens_per_minute": "tokens per minute",
    "concurrency": "requests at once",
}


class Gateway:
    """Without arguments an open one: everybody is let in as long as the engine has room."""

    def __init__(
        self,
        access: AccessConfig | None = None,
        *,
        identity: Identity | None = None,
        store: LimitStore | None = None,
        ledger: Ledger | None = None,
        metrics: GatewayMetrics | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        access = access or AccessConfig()
        self.access = access
        self.ledger = ledger
        self._metrics = metrics or GatewayMetrics()
        self._identity = identity or Identity(access)
        self._store = SurvivingStore(
            store or MemoryStore(now),
            access.limits.when_store_fails,
            on_failure=self._metrics.store_failures.inc,
            now=now,
        )
        self._metrics.watch_store(lambda: self._store.is_up)
        self._now = now
        self.lag = Lag(now)
        self._first = EngineQueue(access.admission, self._metrics, self._keep_leases, now, self.lag)
        self._queues: dict[str, EngineQueue] = {}  # by model, once its engine is guarded
        self._leases: dict[str, Lease] = {}  # by the engine's request ids
        self._full_until: dict[str, float] = {}  # tenants whose minute of requests is taken
        self._settling: set[asyncio.Task[None]] = set()
        self._mean_seconds = 1.0  # of a request
        self.is_draining = False

    def guard(self, engine: Engine, model: str = "", *, can_fall_back: bool = False) -> GuardedEngine:
        """The engine for the Generator, which submits nothing that was not admitted here. Each model's has a queue and
        a ladder of its own; `can_fall_back`: another model stands in for it."""
        queue = self._first
        if self._queues:
            queue = EngineQueue(self.access.admission, self._metrics, self._keep_leases, self._now, self.lag)
        self._queues[model] = queue
        queue.watch(engine, model, can_fall_back=can_fall_back)
        return GuardedEngine(engine, self._leases)

    def guard_embedder(self, embedder: Embedder) -> GuardedEmbedder:
        """As `guard`, for what embeds."""
        return GuardedEmbedder(embedder, self._leases)

    @property
    def is_open(self) -> bool:
        """Nobody has to say who they are."""
        return self._identity.is_open

    @property
    def keys(self) -> KeyStore | None:
        return self._identity.keys

    @property
    def rung(self) -> Rung:
        """Of the first model."""
        return self._first.rung

    def load(self, model: str, principal: Principal, wished: Priority | None) -> Load:
        """As this request would find the model's engine now. Raises ForbiddenError for a class above the tier's."""
        return self._queue_of(model).load(class_of(principal, wished))

    def has_room(self, principal: Principal, wished: Priority | None, *, model: str) -> bool:
        """Whether the model's engine would let this request knock now. Raises ForbiddenError."""
        return self._queue_of(model).has_room(class_of(principal, wished))

    def _queue_of(self, model: str) -> EngineQueue:
        return self._queues.get(model, self._first)

    @property
    def store_is_up(self) -> bool:
        return self._store.is_up

    @property
    def leases(self) -> list[Lease]:
        """Those that are open."""
        return list({id(lease): lease for lease in self._leases.values()}.values())

    def drain(self, *, on: bool = True) -> None:
        """From now on nobody new is admitted; what is open goes on."""
        self.is_draining = on

    async def close(self) -> None:
        await asyncio.gather(*self._settling, return_exceptions=True)
        await self._store.close()
        if self.ledger is not None:
            await asyncio.to_thread(self.ledger.close)

    async def authenticate(self, credentials: Credentials) -> Principal:
        """Raises AuthenticationError, ForbiddenError; OverloadedError where keys cannot be looked up now."""
        return await self._identity.principal(credentials)

    def knock(
        self, principal: Principal, wished: Priority | None = None, *, model: str = "", wish_is_known: bool = True
    ) -> None:
        """Raises what `admit` is sure to raise now, for a cheap refusal before a prompt is rendered and encoded. Before
        a body is read its wishes are not known: a class may be better than usual, a model not the first."""
        with _refusals_counted(self._metrics, principal):
            self._check_open()
            full_for = self._full_until.get(principal.tenant, 0.0) - self._now()
            if full_for > 0:
                raise _limited("requests_per_minute", principal.limits.requests_per_minute or 0, full_for)
            if wish_is_known or (principal.best_priority is principal.priority and len(self._queues) < 2):
                self._queue_of(model).knock(class_of(principal, wished))

    def knock_with(self, principal: Principal, body: bytes) -> None:
        """As `knock`, once a body is here and before it is parsed: without the word it has no wish for a class, and
        with one model none for another."""
        if len(self._queues) < 2 and b"priority" not in body:
            self.knock(principal)

    def preparing(self, model: str = "") -> AbstractContextManager[None]:
        """Around the rendering and encoding of a prompt: whoever knocks meanwhile comes after it."""
        return self._queue_of(model).preparing()

    @asynccontextmanager
    async def admit(self, principal: Principal, ask: Ask) -> AsyncIterator[Lease]:
        """Reserves what `ask` may use; the end of the block settles it and gives the rest back.

        Raises RateLimitedError for a limit of the tenant's, OverloadedError for the server's capacity, RequestError or
        ForbiddenError for what the tier never allows.
        """
        with _refusals_counted(self._metrics, principal):
            lease = await self._lease(principal, ask)
        self._metrics.admitted(principal.tenant)
        names = dict.fromkeys(ask.prompt_of, lease)
        self._leases.update(names)
        failure: BaseException | None = None
        try:
            yield lease
        except BaseException as error:
            failure = error
            raise
        finally:
            for name in names:
                self._leases.pop(name, None)
            self._queue_of(ask.base).leave(lease.place)
            await self._end(lease, failure)

    async def _lease(self, principal: Principal, ask: Ask) -> Lease:
        if not ask.continues:
            self._check_open()
        check_tier(principal, ask)
        priority = class_of(principal, ask.priority)
        queue = self._queue_of(ask.base)
        place, predicted = await queue.enter(principal, priority, ask)
        try:
            caps = (output_cap(principal, ask), None if ask.continues else queue.output_cap)
            cap = min((cap for cap in caps if cap is not None), default=None)
            verdict = await self._reserve(principal, ask, cap)
        except BaseException:
            queue.leave(place)
            raise
        return Lease(
            principal=principal,
            ask=ask,
            priority=priority,
            place=place,
            verdict=verdict,
            output_cap=cap,
            predicted_seconds=predicted,
            metadata={
                **rate_fields(verdict),
                PREDICTED_WAIT: f"{predicted:.2f}",
                **self._degradation(ask),
            },
            on_first_token=self._started,
            queue=self._notice,
            admitted_at=self._now(),
        )

    async def _reserve(self, principal: Principal, ask: Ask, cap: int | None) -> Verdict | None:
        limits = principal.limits
        if ask.continues or not is_limited(limits):  # what was reserved for it first still counts
            return None
        demand = Demand(
            tenant=principal.tenant,
            limits=limits,
            lease_id=secrets.token_hex(8),
            tokens=reserved_tokens(principal, ask, cap),
        )
        verdict = await self._store.reserve(demand)
        if verdict.refused_by is None:
            return verdict
        retry_after = self._mean_seconds if verdict.retry_after is None else verdict.retry_after
        if verdict.refused_by == "requests_per_minute":
            self._remember_full(principal.tenant, retry_after)
        error = _limited(verdict.refused_by, getattr(limits, verdict.refused_by), retry_after)
        error.metadata = rate_fields(verdict)
        raise error

    async def _end(self, lease: Lease, failure: BaseException | None) -> None:
        used, principal = lease.used, lease.principal
        lease.device_seconds = self._queue_of(lease.ask.base).device_seconds(used.total - used.cached)
        self._mean_seconds += _MEMORY * (self._now() - lease.admitted_at - self._mean_seconds)
        self._metrics.used(principal.tenant, "prompt", used.prompt)
        self._metrics.used(principal.tenant, "cached", used.cached)
        self._metrics.used(principal.tenant, "output", used.output)
        if self.ledger is not None:
            self.ledger.add(
                UsageRow(
                    time=time.time(),
                    key_id=principal.key_id,
                    tenant=principal.tenant,
                    model=lease.ask.model,
                    prompt_tokens=used.prompt,
                    cached_tokens=used.cached,
                    output_tokens=used.output,
                    device_seconds=lease.device_seconds,
                    complete=failure is None,
                )
            )
        if lease.verdict is not None:
            never_begun = used.total == 0 and isinstance(failure, WeftError) and failure.retryable
            # Whoever is cancelled here a second time does not take the settlement with it.
            settling = asyncio.ensure_future(
                self._store.settle(lease.verdict, used_tokens=used.total, undo_request=never_begun)
            )
            self._settling.add(settling)
            settling.add_done_callback(self._settling.discard)
            await asyncio.shield(settling)

    async def _keep_leases(self) -> None:
        await self._store.keep([lease.verdict for lease in self.leases if lease.verdict is not None])

    def _started(self, lease: Lease) -> None:
        used = lease.used
        self._queue_of(lease.ask.base).start(lease.place, lease.principal, used.prompt, used.cached)

    def _notice(self, lease: Lease) -> QueueNotice:
        position, seconds = self._queue_of(lease.ask.base).position(lease.place)
        return QueueNotice(position, self._now() - lease.admitted_at, seconds)

    def _degradation(self, ask: Ask) -> dict[str, str]:
        """The rung that the server is on, and what of it this request feels."""
        queue = self._queue_of(ask.base)
        cap, rung = queue.output_cap, queue.rung
        if rung == Rung.NORMAL:
            return {}
        capped = cap is not None and not ask.continues and ask.longest_output > cap
        return {DEGRADED: f"{rung.name.lower()}; max_tokens={cap}" if capped else rung.name.lower()}

    def _check_open(self) -> None:
        if self.is_draining:
            raise OverloadedError(
                "the server is draining: it takes no new requests",
                retry_after=DRAIN_RETRY_SECONDS,
                code="server_draining",
            )

    def _remember_full(self, tenant: str, seconds: float) -> None:
        if len(self._full_until) >= _MOST_REMEMBERED:
            self._full_until.clear()
        self._full_until[tenant] = self._now() + seconds


@contextmanager
def _refusals_counted(metrics: GatewayMetrics, principal: Principal) -> Iterator[None]:
    try:
        yield
    except WeftError as error:
        metrics.refused(principal.tenant, error.code or error.kind)
        raise


def _limited(name: LimitName, limit: int, retry_after: float) -> RateLimitedError:
    return RateLimitedError(
        f"this key's tenant is at its limit of {limit} {_SHOWN[name]}", retry_after=retry_after, code=name
    )
