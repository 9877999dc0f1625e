import asyncio

import pytest

from serving.api.caller import Caller
from serving.api.turn_pages import TurnPages
from serving.engine.pin_messages import PinPrefix, UnpinPrefix
from serving.errors import OverloadedError
from serving.gateway.lease import salt_of
from serving.gateway.principal import Principal
from serving.generation.request import TextRequest
from tests.serving.api.conftest import Api, ApiMaker

REQUEST = TextRequest(
    request_id="r-1",
    messages=[{"role": "user", "content": "a question of some length"}],
    add_generation_prompt=False,
    cache_salt="salt",
)
CALLER = Caller(request_id="r", principal=Principal(key_id="k", tenant="acme", tier="t"))


async def held(api: Api, until: asyncio.Event | None = None) -> None:
    async with TurnPages(api.service, CALLER)(REQUEST, 30.0):
        if until is not None:
            await until.wait()


async def test_pages_are_pinned_as_the_tenants_requests_find_them_and_let_go_again(make_api: ApiMaker) -> None:
    api = make_api()
    done = asyncio.Event()
    holding = asyncio.create_task(held(api, done))
    while not api.engine.operations:
        await asyncio.sleep(0.01)
    pin = api.engine.operations[0]
    assert isinstance(pin, PinPrefix)
    assert pin.token_ids == tuple(make_api.ids("<|im_start|>user\na question of some length<|im_end|>\n"))
    assert (pin.salt, pin.seconds) == (salt_of("acme", "salt"), 30.0)
    assert pin.owner != "acme", "the tenant's own pins are counted apart"
    done.set()
    await holding
    assert api.engine.operations[1:] == [UnpinPrefix(name=pin.name, owner=pin.owner)]


async def test_a_tool_that_ends_at_once_pins_nothing(make_api: ApiMaker) -> None:
    api = make_api()
    await held(api)
    assert api.engine.operations == []


async def test_a_pin_that_is_refused_costs_the_turn_nothing(
    make_api: ApiMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    api, done = make_api(), asyncio.Event()

    async def refuse(operation: object) -> None:
        done.set()
        raise OverloadedError("pins may hold 0 pages", retry_after=60.0)

    monkeypatch.setattr(api.engine, "operate", refuse)
    await held(api, done)
