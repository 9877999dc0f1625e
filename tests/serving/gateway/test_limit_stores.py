"""The store in memory and the one in Redis keep the same promises; and side by side they give the same answers."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from serving.access import TierConfig
from serving.gateway.limit_store import Demand, LimitStore, StoreFailedError, Verdict
from serving.gateway.memory_store import MemoryStore
from serving.gateway.redis_store import LEASE_SECONDS, RedisStore
from tests.serving.gateway.clock import Clock
from tests.serving.gateway.redis_server import RedisServer

TIER = TierConfig(requests_per_minute=5, tokens_per_minute=100, concurrency=3)


def demand(lease: str, *, tokens: int = 10, tenant: str = "acme", limits: TierConfig = TIER) -> Demand:
    return Demand(tenant=tenant, limits=limits, lease_id=lease, tokens=tokens)


@pytest.fixture(params=["memory", "redis"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@asynccontextmanager
async def opened(kind: str, clock: Clock, server: RedisServer) -> AsyncIterator[LimitStore]:
    store = MemoryStore(clock) if kind == "memory" else RedisStore(server.url, clock=clock)
    try:
        yield store
    finally:
        await store.close()


async def test_a_limit_on_requests_refuses_the_next_and_says_when(
    kind: str, clock: Clock, redis_server: RedisServer
) -> None:
    limits = TierConfig(requests_per_minute=2)
    async with opened(kind, clock, redis_server) as store:
        name = f"requests-{kind}"
        for i in range(2):
            verdict = await store.reserve(demand(f"{i}", tenant=name, limits=limits))
            assert verdict.refused_by is None
            await store.settle(verdict, used_tokens=10)
        clock.pass_(20)
        refused = await store.reserve(demand("2", tenant=name, limits=limits))
        assert (refused.refused_by, refused.retry_after) == ("requests_per_minute", 41.0)
        assert refused.requests is not None
        assert (refused.requests.limit, refused.requests.remaining) == (2, 0)
        clock.pass_(41)
        assert (await store.reserve(demand("3", tenant=name, limits=limits))).refused_by is None


async def test_tokens_are_reserved_and_what_was_not_used_is_given_back(
    kind: str, clock: Clock, redis_server: RedisServer
) -> None:
    async with opened(kind, clock, redis_server) as store:
        name = f"tokens-{kind}"
        first = await store.reserve(demand("a", tokens=90, tenant=name))
        refused = await store.reserve(demand("b", tokens=20, tenant=name))
        assert refused.refused_by == "tokens_per_minute"
        await store.settle(first, used_tokens=30)
        second = await store.reserve(demand("c", tokens=70, tenant=name))
        assert second.refused_by is None
        assert second.tokens is not None
        assert second.tokens.used == 100
        await store.settle(second, used_tokens=75)  # an estimate that was too low is charged
        third = await store.reserve(demand("d", tokens=1, tenant=name))
        assert third.refused_by == "tokens_per_minute"


async def test_a_request_that_never_began_leaves_no_trace(kind: str, clock: Clock, redis_server: RedisServer) -> None:
    async with opened(kind, clock, redis_server) as store:
        for i in range(3 * 5):
            verdict = await store.reserve(demand(f"{i}", tokens=100, tenant=f"undo-{kind}"))
            assert verdict.refused_by is None
            await store.settle(verdict, used_tokens=0, undo_request=True)


async def test_no_more_run_at_once_than_are_allowed(kind: str, clock: Clock, redis_server: RedisServer) -> None:
    async with opened(kind, clock, redis_server) as store:
        running = [await store.reserve(demand(f"{i}", tenant=f"many-{kind}")) for i in range(3)]
        assert (await store.reserve(demand("x", tenant=f"many-{kind}"))).refused_by == "concurrency"
        await store.settle(running[0], used_tokens=1)
        assert (await store.reserve(demand("y", tenant=f"many-{kind}"))).refused_by is None


async def test_a_tenant_takes_nothing_of_another(kind: str, clock: Clock, redis_server: RedisServer) -> None:
    async with opened(kind, clock, redis_server) as store:
        for i in range(3):
            assert (await store.reserve(demand(f"{i}", tenant=f"one-{kind}"))).refused_by is None
        assert (await store.reserve(demand("x", tenant=f"two-{kind}"))).refused_by is None


async def test_both_stores_answer_the_same_to_the_same_demands(clock: Clock, redis_server: RedisServer) -> None:
    draw = random.Random(11)
    async with opened("memory", clock, redis_server) as memory, opened("redis", clock, redis_server) as shared:
        open_verdicts: list[tuple[Verdict, Verdict]] = []
        for i in range(300):
            clock.pass_(draw.choice((0.0, 0.5, 1.0, 7.5)))
            if open_verdicts and draw.random() < 0.45:
                ours, theirs = open_verdicts.pop(draw.randrange(len(open_verdicts)))
                used, undo = draw.randrange(0, 60), draw.random() < 0.2
                await memory.settle(ours, used_tokens=used, undo_request=undo)
                await shared.settle(theirs, used_tokens=used, undo_request=undo)
                continue
            wanted = demand(f"lease-{i}", tokens=draw.randrange(1, 60), tenant="both")
            ours, theirs = await memory.reserve(wanted), await shared.reserve(wanted)
            assert ours == theirs
            if ours.refused_by is None:
                open_verdicts.append((ours, theirs))
            await memory.keep([ours for ours, _ in open_verdicts])
            await shared.keep([theirs for _, theirs in open_verdicts])


async def test_processes_that_ask_at_once_never_take_the_last_place_twice(redis_server: RedisServer) -> None:
    limits = TierConfig(requests_per_minute=10, tokens_per_minute=1000)
    stores = [RedisStore(redis_server.url) for _ in range(4)]

    async def ask(number: int) -> Verdict:
        """Again where Redis was too slow for a store's patience: what is heard twice is taken once."""
        while True:
            with contextlib.suppress(StoreFailedError):
                return await stores[number % 4].reserve(demand(f"{number}", tenant="race", limits=limits))

    try:
        verdicts = await asyncio.gather(*(ask(number) for number in range(40)))
        assert sum(verdict.refused_by is None for verdict in verdicts) == 10
    finally:
        await asyncio.gather(*(store.close() for store in stores))


async def test_a_demand_that_redis_hears_twice_is_taken_once(clock: Clock, redis_server: RedisServer) -> None:
    async with opened("redis", clock, redis_server) as store:
        first = await store.reserve(demand("same", tokens=60, tenant="twice"))
        again = await store.reserve(demand("same", tokens=60, tenant="twice"))
        assert again.refused_by is None
        assert (first.tokens, first.requests) == (again.tokens, again.requests)


async def test_the_places_of_a_process_that_died_are_free_after_a_minute_and_those_that_are_kept_are_not(
    clock: Clock, redis_server: RedisServer
) -> None:
    limits = TierConfig(concurrency=2)
    async with opened("redis", clock, redis_server) as store:
        kept, _lost = [await store.reserve(demand(name, tenant="dead", limits=limits)) for name in ("kept", "lost")]
        clock.pass_(LEASE_SECONDS / 2)
        await store.keep([kept])
        clock.pass_(LEASE_SECONDS / 2 + 1)
        assert (await store.reserve(demand("new", tenant="dead", limits=limits))).refused_by is None
        assert (await store.reserve(demand("more", tenant="dead", limits=limits))).refused_by == "concurrency"


async def test_a_redis_that_is_not_there_is_said_to_have_failed(redis_server: RedisServer) -> None:
    store = RedisStore(redis_server.url + ".nowhere")
    with pytest.raises(StoreFailedError):
        await store.reserve(demand("a"))
    await store.close()


async def test_a_clock_that_is_set_back_an_hour_holds_nobody_for_longer_than_a_minute(
    clock: Clock, redis_server: RedisServer
) -> None:
    limits = TierConfig(requests_per_minute=2, concurrency=2)
    async with opened("redis", clock, redis_server) as store:
        for lease in ("a", "b"):  # nobody settles them: their process dies
            assert (await store.reserve(demand(lease, tenant="back", limits=limits))).refused_by is None
        clock.pass_(-3600)
        crowded = await store.reserve(demand("c", tenant="back", limits=limits))
        assert crowded.refused_by == "concurrency"
        clock.pass_(LEASE_SECONDS)
        refused = await store.reserve(demand("d", tenant="back", limits=limits))
        assert (refused.refused_by, refused.retry_after) == ("requests_per_minute", 1.0)
        clock.pass_(1)
        assert (await store.reserve(demand("e", tenant="back", limits=limits))).refused_by is None


async def test_a_clock_that_leaps_an_hour_ahead_frees_what_was_taken_and_counts_on(
    clock: Clock, redis_server: RedisServer
) -> None:
    limits = TierConfig(requests_per_minute=1)
    async with opened("redis", clock, redis_server) as store:
        first = await store.reserve(demand("a", tenant="ahead", limits=limits))
        clock.pass_(3600)
        await store.settle(first, used_tokens=10)
        assert (await store.reserve(demand("b", tenant="ahead", limits=limits))).refused_by is None
        refused = await store.reserve(demand("c", tenant="ahead", limits=limits))
        assert (refused.refused_by, refused.retry_after) == ("requests_per_minute", 61.0)
