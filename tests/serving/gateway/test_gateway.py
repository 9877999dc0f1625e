import asyncio
from pathlib import Path
from typing import Any

import pytest

from serving.access import AccessConfig, AdmissionConfig, LimitsConfig
from serving.engine.request import Priority
from serving.errors import (
    ContextLengthError,
    EngineError,
    EngineUnavailableError,
    ForbiddenError,
    OverloadedError,
    RateLimitedError,
    RequestError,
    WeftError,
)
from serving.gateway.gateway import Gateway
from serving.gateway.lease import Tokens
from serving.gateway.ledger import Ledger, read_usage
from serving.gateway.limit_store import Demand, StoreFailedError, Verdict
from serving.gateway.memory_store import MemoryStore
from tests.fakes.engine import Script, ScriptedEngine
from tests.serving.gateway.asks import ask, engine_request, principal
from tests.serving.gateway.clock import Clock


async def run(gateway: Gateway, engine: Any, who: Any, wanted: Any, **request: Any) -> Tokens:
    async with gateway.admit(who, wanted) as lease:
        for name in wanted.prompt_of:
            async for _ in engine.generate(engine_request(name, **request)):
                pass
    return lease.used


def scripted(tokens: int = 5, **script: Any) -> ScriptedEngine:
    return ScriptedEngine(scripts=[Script(token_ids=list(range(tokens)), **script)])


async def refusal(gateway: Gateway, who: Any, wanted: Any) -> WeftError:
    with pytest.raises(WeftError) as refused:
        async with gateway.admit(who, wanted):
            pass
    return refused.value


async def test_what_was_not_admitted_does_not_reach_the_engine() -> None:
    """Whatever protocol has forgotten to ask."""
    gateway, engine = Gateway(), scripted()
    guarded = gateway.guard(engine)
    with pytest.raises(EngineError) as refused:
        await anext(guarded.generate(engine_request()))
    assert refused.value.code == "not_admitted"
    async with gateway.admit(principal(), ask("other")):
        with pytest.raises(EngineError):
            await anext(guarded.generate(engine_request()))
    with pytest.raises(EngineError):
        await anext(guarded.generate(engine_request("other")))
    assert engine.requests == []


async def test_the_engine_gets_the_tenant_its_class_and_weight_and_a_cache_of_its_own() -> None:
    gateway, engine = Gateway(), scripted()
    guarded = gateway.guard(engine)
    who = principal("acme", priority="interactive", weight=3.0)
    await run(gateway, guarded, who, ask(priority=Priority.BATCH), salt="s")
    await run(gateway, guarded, who, ask("two"), salt="s")
    await run(gateway, guarded, principal("acm"), ask("three"), salt="e:s")
    first, second, other = engine.requests
    assert (first.tenant, first.tenant_weight, first.priority) == ("acme", 3.0, Priority.BATCH)
    assert second.priority is Priority.INTERACTIVE
    assert first.cache_salt == second.cache_salt
    assert other.cache_salt != first.cache_salt


async def test_used_tokens_are_those_that_the_engine_made_and_a_prompt_counts_once() -> None:
    gateway, engine = Gateway(), scripted(5, cached_tokens=8)
    used = await run(gateway, gateway.guard(engine), principal(), ask(choices=3))
    assert used == Tokens(prompt=10, cached=8, output=15)


async def test_tokens_are_reserved_whole_and_what_was_not_used_comes_back(clock: Clock) -> None:
    gateway, who = Gateway(now=clock), principal(tokens_per_minute=100)
    engine = gateway.guard(scripted(5))
    async with gateway.admit(who, ask("held", prompt=10, output=60)) as lease:
        assert lease.metadata["x-ratelimit-remaining-tokens"] == "30"
        refused = await refusal(gateway, who, ask(prompt=10, output=30))
        assert isinstance(refused, RateLimitedError)
        assert (refused.code, refused.retry_after) == ("tokens_per_minute", 61.0)
        assert refused.metadata["x-ratelimit-limit-tokens"] == "100"
    for i in range(5):  # 15 each; what "held" had reserved and not used is back
        await run(gateway, engine, who, ask(f"{i}", prompt=10, output=20))
    assert isinstance(await refusal(gateway, who, ask(prompt=10, output=20)), RateLimitedError)


async def test_a_client_that_leaves_pays_for_what_it_got(clock: Clock) -> None:
    gateway, who = Gateway(now=clock), principal(tokens_per_minute=100)
    engine = gateway.guard(scripted(50, hold_after=4))
    async with gateway.admit(who, ask(prompt=10, output=80)) as lease:
        events = engine.generate(engine_request(output=80))
        for _ in range(3):
            await anext(events)
        await events.aclose()
    assert lease.used.total == 13
    async with gateway.admit(who, ask("next", prompt=10, output=77)):
        pass
    assert isinstance(await refusal(gateway, who, ask("last", prompt=10, output=78)), RateLimitedError)


async def test_a_request_that_the_engine_never_began_counts_nothing(clock: Clock) -> None:
    gateway, who = Gateway(now=clock), principal(requests_per_minute=1, tokens_per_minute=30)
    engine = gateway.guard(scripted(raises=EngineUnavailableError("restarting")))
    for _ in range(3):
        with pytest.raises(EngineUnavailableError):
            await run(gateway, engine, who, ask())


async def test_an_unstated_output_is_estimated_and_settled(clock: Clock) -> None:
    gateway, who = Gateway(now=clock), principal(tokens_per_minute=100, unstated_output_tokens=20)
    wanted = ask(prompt=10, output=4000, stated=False)
    engine = gateway.guard(scripted(70))
    assert (await run(gateway, engine, who, wanted, output=4000)).total == 80
    assert isinstance(await refusal(gateway, who, wanted), RateLimitedError)


async def test_a_request_that_no_minute_can_hold_is_the_clients_error() -> None:
    refused = await refusal(Gateway(), principal(tokens_per_minute=100), ask(prompt=90, output=20))
    assert isinstance(refused, RequestError)
    assert refused.code == "request_exceeds_rate_limit"


async def test_a_tenants_requests_at_once_are_bounded_and_its_minute_of_requests(clock: Clock) -> None:
    gateway, who = Gateway(now=clock), principal(concurrency=1, requests_per_minute=2)
    async with gateway.admit(who, ask("a")):
        refused = await refusal(gateway, who, ask("b"))
        assert isinstance(refused, RateLimitedError)
        assert refused.code == "concurrency"
        assert refused.retry_after > 0
    async with gateway.admit(who, ask("b")):
        pass
    assert (await refusal(gateway, who, ask("c"))).code == "requests_per_minute"
    with pytest.raises(RateLimitedError) as knocked:  # from memory, before any prompt is read
        gateway.knock(who)
    assert (knocked.value.code, knocked.value.retry_after) == ("requests_per_minute", 61.0)
    clock.pass_(61)
    gateway.knock(who)


async def test_a_tier_bounds_lengths_models_and_classes() -> None:
    gateway = Gateway()
    tier = {"context_tokens": 50, "output_tokens": 30, "models": ("weft/scripted",), "priority": "standard"}
    who = principal(**tier)
    for wanted, kind, code in (
        (ask(prompt=50), ContextLengthError, "tier_context_exceeded"),
        (ask(prompt=45, output=10), ContextLengthError, "tier_context_exceeded"),
        (ask(prompt=5, output=31), RequestError, "tier_output_exceeded"),
        (ask(model="else"), ForbiddenError, "model_not_allowed"),
        (ask(priority=Priority.INTERACTIVE), ForbiddenError, "priority_not_allowed"),
    ):
        refused = await refusal(gateway, who, wanted)
        assert (type(refused), refused.code) == (kind, code)
    async with gateway.admit(who, ask(prompt=40, output=4000, stated=False)) as lease:
        assert lease.output_cap == 10
        assert lease.shape(engine_request(prompt=40, output=4000)).sampling.max_tokens == 10


async def test_a_draining_gateway_admits_nobody_new_and_lets_what_was_begun_go_on() -> None:
    gateway = Gateway()
    gateway.drain()
    for refused in (await refusal(gateway, principal(), ask()), pytest.raises(OverloadedError)):
        if isinstance(refused, WeftError):
            assert refused.code == "server_draining"
        else:
            with refused:
                gateway.knock(principal())
    async with gateway.admit(principal(), ask(continues=True)):
        pass
    gateway.drain(on=False)
    async with gateway.admit(principal(), ask()):
        pass


class BrokenStore(MemoryStore):
    broken = True

    async def reserve(self, demand: Demand) -> Verdict:
        if self.broken:
            raise StoreFailedError("gone")
        return await super().reserve(demand)

    async def settle(self, verdict: Verdict, *, used_tokens: int, undo_request: bool = False) -> None:
        if self.broken:
            raise StoreFailedError("gone")
        await super().settle(verdict, used_tokens=used_tokens, undo_request=undo_request)


async def test_a_lost_store_refuses_limited_tenants_alone_and_comes_back(clock: Clock) -> None:
    store = BrokenStore(clock)
    gateway, who = Gateway(store=store, now=clock), principal(requests_per_minute=2)
    refused = await refusal(gateway, who, ask())
    assert isinstance(refused, OverloadedError)
    assert refused.code == "limits_unavailable"
    assert not gateway.store_is_up
    async with gateway.admit(principal("free"), ask()):
        pass
    store.broken = False
    assert isinstance(await refusal(gateway, who, ask()), OverloadedError)  # not asked again at once
    clock.pass_(1)
    async with gateway.admit(who, ask()):
        store.broken = True
    store.broken = False  # the settlement was lost, and nobody noticed but the counter
    clock.pass_(1)
    async with gateway.admit(who, ask()):
        pass
    assert gateway.store_is_up


async def test_with_the_local_policy_each_process_counts_by_itself_meanwhile(clock: Clock) -> None:
    access = AccessConfig(limits=LimitsConfig(when_store_fails="local"))
    gateway, who = Gateway(access, store=BrokenStore(clock), now=clock), principal(requests_per_minute=2)
    for name in "ab":
        async with gateway.admit(who, ask(name)):
            pass
    assert isinstance(await refusal(gateway, who, ask("c")), RateLimitedError)


async def test_a_cancelled_request_still_gives_back_what_it_did_not_use(clock: Clock) -> None:
    gateway, who = Gateway(now=clock), principal(tokens_per_minute=100, concurrency=1)
    inside = asyncio.Event()

    async def hold() -> None:
        async with gateway.admit(who, ask(prompt=50, output=50)):
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(hold())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with gateway.admit(who, ask(prompt=50, output=50)):
        pass


async def test_the_ledger_has_a_row_for_each_request(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "usage.sqlite")
    gateway = Gateway(ledger=ledger)
    engine = gateway.guard(scripted(5, cached_tokens=4))
    await run(gateway, engine, principal(), ask("one"))
    with pytest.raises(RuntimeError):
        async with gateway.admit(principal("b"), ask("two")):
            raise RuntimeError
    await gateway.close()
    first, second = read_usage(ledger.path)
    assert (first.tenant, first.key_id, first.prompt_tokens, first.cached_tokens, first.output_tokens) == (
        *("acme", "acme-key"),
        *(10, 4, 5),
    )
    assert (first.complete, second.complete, second.prompt_tokens) == (True, False, 0)


async def test_overload_goes_up_the_ladder_and_comes_down_again(clock: Clock) -> None:
    """Eight rows that never end; then what waits grows, and nothing is started."""
    config = AdmissionConfig(standard_seconds=10, interactive_seconds=10, batch_seconds=1000, capped_output_tokens=7)
    gateway, who = Gateway(AccessConfig(admission=config), now=clock), principal(best_priority="interactive")
    engine = gateway.guard(scripted(50, hold_after=1))
    begun = []
    for i in range(8):
        lease = gateway.admit(who, ask(f"run-{i}"))
        await lease.__aenter__()
        events = engine.generate(engine_request(f"run-{i}"))
        await anext(events)
        begun.append((lease, events))
    waiting = [gateway.admit(who, ask("wait-0"))]
    first = await waiting[0].__aenter__()
    assert gateway.rung == 0
    assert first.is_waiting
    assert first.notice.position == 0
    clock.pass_(3)  # in which no row came free: half a stream in three seconds
    assert (await refusal(gateway, who, ask("batch", priority=Priority.BATCH))).code == "batch_shed"
    refused = await refusal(gateway, who, ask("more"))
    assert isinstance(refused, OverloadedError)
    assert refused.code == "queue_too_long"
    assert refused.retry_after >= 1
    later = await refusal(gateway, who, ask("more"))
    assert isinstance(later, OverloadedError)
    assert later.retry_after > refused.retry_after  # one after the other, at the rate of the rows
    with pytest.raises(OverloadedError):
        gateway.knock(who)
    gateway.knock(who, Priority.INTERACTIVE)  # goes before all that wait
    wishes = (None, Priority.INTERACTIVE, Priority.BATCH)
    assert [gateway.has_room(who, wish, model="") for wish in wishes] == [False, True, False]
    gateway.knock(who, wish_is_known=False)  # may wish for that
    with pytest.raises(OverloadedError):
        gateway.knock(principal(), wish_is_known=False)  # may not
    gateway.knock_with(who, b'{"priority": "interactive"}')
    with pytest.raises(OverloadedError):
        gateway.knock_with(who, b'{"prompt": "a wish for nothing"}')
    async with gateway.admit(who, ask("lost", continues=True)) as resumed:
        assert resumed.output_cap is None
    for lease, events in begun:
        await events.aclose()
        await lease.__aexit__(None, None, None)
    await waiting[0].__aexit__(None, None, None)
    assert gateway.rung == 0
    async with gateway.admit(who, ask("after")) as free:
        assert "weft-degraded" not in free.metadata
