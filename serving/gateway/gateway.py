"""The one door: every protocol calls `authenticate`, and `admit` around what it submits.

    principal = await gateway.authenticate(Credentials.of(headers))
    principal.require(Scope.INFERENCE)
    gateway.knock(principal)                    # before the prompt is read: refuses at once what is sure to be refused
    prepared = [await generator.prepare(request)]
    async with gateway.admit(principal, Ask.of(prepared, model=name, stream=True)) as lease:
        async for delta in generator.stream(prepared[0]): ...

A refusal is a WeftError with `code`, `retry_after` where asking again can help, and `metadata`: the rate-limit values,
as HTTP headers or gRPC trailers. The engine below is guarded: what was not admitted does not reach it.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from serving.engine.client import Engine
from serving.gateway.ask import Ask
from serving.gateway.guard import GuardedEngine
from serving.gateway.lease import Lease
from serving.gateway.principal import Credentials, Principal, anonymous


class Gateway:
    def __init__(self) -> None:
        self._leases: dict[str, Lease] = {}

    def guard(self, engine: Engine) -> GuardedEngine:
        """The engine for the Generator, which submits nothing that was not admitted here."""
        return GuardedEngine(engine, self._leases)

    async def authenticate(self, credentials: Credentials) -> Principal:
        """Raises AuthenticationError, ForbiddenError; OverloadedError where keys cannot be looked up now."""
        return anonymous()

    def knock(self, principal: Principal) -> None:
        """Raises what `admit` is sure to raise now, for a cheap refusal before a prompt is rendered and encoded."""

    @asynccontextmanager
    async def admit(self, principal: Principal, ask: Ask) -> AsyncIterator[Lease]:
        """Reserves what `ask` may use; the end of the block settles it and gives the rest back.

        Raises RateLimitedError for a limit of the tenant's, OverloadedError for the server's capacity, RequestError or
        ForbiddenError for what the tier never allows.
        """
        lease = Lease(principal=principal, ask=ask, priority=ask.priority or principal.priority)
        names = dict.fromkeys(ask.request_ids, lease)
        self._leases.update(names)
        try:
            yield lease
        finally:
            for name in names:
                self._leases.pop(name, None)
