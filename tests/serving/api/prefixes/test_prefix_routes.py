"""Prefixes are pinned as the requests that they are for will ask for them, each tenant's apart from the others'."""

from pathlib import Path

from serving.access import AccessConfig, AuthConfig
from serving.engine.pin_messages import PinPrefix
from serving.gateway.gateway import Gateway
from serving.gateway.identity import Identity
from serving.gateway.key_store import KeyStore
from serving.gateway.principal import Scope
from tests.serving.api.conftest import WINDOW, Api, ApiMaker, chat_body

SYSTEM = {"role": "system", "content": "Speak as a lighthouse keeper would. " * 8}
TOOL = {"type": "function", "function": {"name": "tide", "parameters": {"type": "object"}}}


def pinned(api: Api) -> list[PinPrefix]:
    return [operation for operation in api.engine.operations if isinstance(operation, PinPrefix)]


async def test_a_pinned_prefix_is_how_a_chat_with_it_begins(make_api: ApiMaker) -> None:
    api = make_api(make_api.says("fine"))
    reply = await api.post("/v1/prefixes", {"messages": [SYSTEM], "tools": [TOOL], "ttl": 60})
    assert reply.status_code == 200, reply.text
    body = chat_body(tools=[TOOL])
    body["messages"] = [SYSTEM, *body["messages"]]
    assert (await api.post("/v1/chat/completions", body)).status_code == 200
    (pin,), (asked,) = pinned(api), api.engine.requests
    assert asked.prompt_token_ids[: len(pin.token_ids)] == pin.token_ids
    assert (pin.salt, pin.seconds) == (asked.cache_salt, 60.0)
    whole = len(pin.token_ids) // 16 * 16
    assert reply.json() | {"expires_at": 0, "id": ""} == {
        "id": "",
        "object": "prefix",
        "expires_at": 0,
        "tokens": whole,
        "held_tokens": 0,
    }


async def test_the_same_prefix_again_is_the_same_one_for_a_new_time(make_api: ApiMaker) -> None:
    api = make_api()
    ids = [(await api.post("/v1/prefixes", {"prompt": "abc " * 20, "ttl": ttl})).json()["id"] for ttl in (10, 20)]
    other = (await api.post("/v1/prefixes", {"prompt": "abc " * 20, "cache_salt": "s"})).json()["id"]
    assert ids[0] == ids[1] != other
    assert [pin.seconds for pin in pinned(api)] == [10.0, 20.0, 3600.0]
    assert [prefix["id"] for prefix in (await api.get("/v1/prefixes")).json()["data"]] == [ids[0], other]


async def test_tenants_have_salts_of_their_own_and_see_their_own_prefixes(make_api: ApiMaker, tmp_path: Path) -> None:
    access = AccessConfig(auth=AuthConfig(keys=Path("k")))
    store = KeyStore(tmp_path / "keys.sqlite")
    headers = [{"authorization": f"Bearer {store.create(name, [Scope.INFERENCE]).text}"} for name in ("acme", "other")]
    api = make_api(make_api.says("fine"), gateway=Gateway(access, identity=Identity(access, keys=store)))
    body = {"prompt": "abc " * 20}
    mine, theirs = [(await api.post("/v1/prefixes", body, headers=who)).json()["id"] for who in headers]
    await api.post("/v1/completions", body, headers=headers[0])
    first, second = pinned(api)
    assert first.token_ids == second.token_ids
    assert first.salt == api.engine.requests[0].cache_salt != second.salt
    async with api.client() as client:
        listed = (await client.get("/v1/prefixes", headers=headers[0])).json()["data"]
        assert [prefix["id"] for prefix in listed] == [mine]
        assert (await client.get(f"/v1/prefixes/{theirs}", headers=headers[0])).status_code == 404
        assert (await client.delete(f"/v1/prefixes/{theirs}", headers=headers[0])).status_code == 404
        assert (await client.delete(f"/v1/prefixes/{mine}", headers=headers[0])).json()["deleted"] is True
        assert (await client.get(f"/v1/prefixes/{mine}", headers=headers[0])).status_code == 404
        assert (await client.get("/v1/prefixes")).status_code == 401


async def test_what_cannot_be_pinned_is_refused_by_name(make_api: ApiMaker) -> None:
    api = make_api()
    for body, param in (
        ({}, "prompt"),
        ({"prompt": "a", "messages": [SYSTEM]}, "prompt"),
        ({"prompt": "a" * (WINDOW + 1)}, "prompt"),
        ({"messages": [{"role": "system", "content": "a" * (WINDOW + 1)}]}, "messages"),
        ({"prompt": "a", "tools": [TOOL]}, "tools"),
        ({"prompt": "a", "ttl": 10**6}, "ttl"),
        ({"prompt": "a", "ttl": 0}, "ttl"),
        ({"prompt": "a", "model": "another"}, "model"),
    ):
        reply = await api.post("/v1/prefixes", body)
        assert reply.status_code in (400, 404)
        assert reply.json()["error"]["param"] == param, reply.text
    assert not pinned(api)
