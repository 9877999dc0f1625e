"""Conversations: what is said in them is theirs, one response at a time."""

from pathlib import Path
from typing import Any

from serving.access import AccessConfig, AuthConfig, TierConfig
from serving.gateway.gateway import Gateway
from serving.gateway.identity import Identity
from serving.gateway.key_store import KeyStore
from serving.gateway.principal import Scope
from tests.serving.api.conftest import Api, ApiMaker
from tests.serving.api.responses.asking import ask, create, prompt, refused

HI = {"type": "message", "role": "user", "content": "hi"}


async def made(api: Api, **fields: Any) -> str:
    return (await ask(api, "POST", "/v1/conversations", json=fields))["id"]


async def said(api: Api, name: str, order: str = "asc") -> list[str]:
    page = await ask(api, "GET", f"/v1/conversations/{name}/items?order={order}&limit=100")
    return [item["content"][0]["text"] for item in page["data"]]


async def test_a_response_reads_what_was_said_and_adds_to_it(make_api: ApiMaker) -> None:
    api = make_api(make_api.says("Hello."), make_api.says("Bye."))
    name = await made(api, items=[{"role": "system", "content": "Be kind."}])
    first = await create(api, "one", conversation=name)
    assert first["conversation"] == {"id": name}
    assert "Be kind." in prompt(api)
    await create(api, "two", conversation={"id": name})
    assert prompt(api).index("one") < prompt(api).index("Hello.") < prompt(api).index("two")
    assert await said(api, name) == ["Be kind.", "one", "Hello.", "two", "Bye."]
    assert await said(api, name, "desc") == ["Bye.", "two", "Hello.", "one", "Be kind."]


async def test_a_branch_leaves_the_conversation_as_it_is(make_api: ApiMaker) -> None:
    api = make_api(make_api.says("Hello."), make_api.says("Other."))
    name = await made(api)
    first = await create(api, "one", conversation=name)
    branch = await create(api, "two", previous_response_id=first["id"])
    assert branch["conversation"] is None
    assert await said(api, name) == ["one", "Hello."]


async def test_items_are_added_read_page_by_page_and_deleted(make_api: ApiMaker) -> None:
    api = make_api()
    name = await made(api, metadata={"topic": "x"})
    path = f"/v1/conversations/{name}"
    added = await ask(api, "POST", f"{path}/items", json={"items": [HI, {**HI, "content": "ho"}, HI]})
    ids = [item["id"] for item in added["data"]]
    assert (added["first_id"], added["last_id"], added["has_more"]) == (ids[0], ids[-1], False)
    page = await ask(api, "GET", f"{path}/items?limit=2&order=asc")
    assert ([item["id"] for item in page["data"]], page["has_more"]) == (ids[:2], True)
    page = await ask(api, "GET", f"{path}/items?limit=2&order=asc&after={ids[1]}")
    assert ([item["id"] for item in page["data"]], page["has_more"]) == (ids[2:], False)
    assert (await ask(api, "GET", f"{path}/items/{ids[1]}"))["content"][0]["text"] == "ho"
    assert (await ask(api, "DELETE", f"{path}/items/{ids[1]}"))["id"] == name
    await ask(api, "GET", f"{path}/items/{ids[1]}", 404)
    await ask(api, "DELETE", f"{path}/items/{ids[1]}", 404)
    await ask(api, "GET", f"{path}/items?after={ids[1]}", 404)
    await ask(api, "GET", f"{path}/items?limit=0", 400)
    await ask(api, "GET", f"{path}/items?order=up", 400)
    await ask(api, "POST", f"{path}/items", 400, json={"items": [HI] * 21})
    changed = await ask(api, "POST", path, json={"metadata": {"topic": "y"}})
    assert changed == await ask(api, "GET", path)
    assert changed["metadata"] == {"topic": "y"}
    assert await ask(api, "DELETE", path) == {"id": name, "object": "conversation.deleted", "deleted": True}
    for method, rest in (("GET", ""), ("DELETE", ""), ("GET", "/items"), ("GET", f"/items/{ids[0]}")):
        await ask(api, method, path + rest, 404)
    assert (await refused(api, 404, conversation=name))["code"] == "conversation_not_found"


async def test_another_tenants_conversations_and_responses_are_not_there(make_api: ApiMaker, tmp_path: Path) -> None:
    store = KeyStore(tmp_path / "keys.sqlite")
    access = AccessConfig(auth=AuthConfig(keys=tmp_path / "keys.sqlite"), tiers={"default": TierConfig()})
    api = make_api(make_api.says("secret"), gateway=Gateway(access, identity=Identity(access, keys=store)))
    mine, other = (
        {"authorization": f"Bearer {store.create(tenant, [Scope.INFERENCE]).text}"} for tenant in ("acme", "else")
    )
    name = (await ask(api, "POST", "/v1/conversations", json={"items": [HI]}, headers=mine))["id"]
    body = {"input": "mine", "conversation": name, "background": True}
    response = (await ask(api, "POST", "/v1/responses", json=body, headers=mine))["id"]
    item = (await ask(api, "GET", f"/v1/conversations/{name}/items", headers=mine))["data"][0]["id"]
    for method, path in (
        ("GET", f"/v1/conversations/{name}"),
        ("POST", f"/v1/conversations/{name}"),
        ("DELETE", f"/v1/conversations/{name}"),
        ("GET", f"/v1/conversations/{name}/items"),
        ("POST", f"/v1/conversations/{name}/items"),
        ("GET", f"/v1/conversations/{name}/items/{item}"),
        ("DELETE", f"/v1/conversations/{name}/items/{item}"),
        ("GET", f"/v1/responses/{response}"),
        ("GET", f"/v1/responses/{response}?stream=true"),
        ("DELETE", f"/v1/responses/{response}"),
        ("POST", f"/v1/responses/{response}/cancel"),
        ("GET", f"/v1/responses/{response}/input_items"),
    ):
        sent = None if method != "POST" else {"items": [HI]} if path.endswith("items") else {"metadata": {}}
        await ask(api, method, path, 404, json=sent, headers=other)
    for where in ({"previous_response_id": response}, {"conversation": name}):
        await ask(api, "POST", "/v1/responses", 404, json={"input": "hi", **where}, headers=other)
    assert (await ask(api, "GET", f"/v1/responses/{response}", headers=mine))["id"] == response
