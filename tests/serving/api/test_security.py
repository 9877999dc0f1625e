"""Classes of bug that servers of this kind have shipped, as far as the front door can stop them. Numbers are those of
the threat table in docs/gateway.md."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute

from serving.access import AccessConfig, AdminConfig, AuthConfig
from serving.api.admin import build_admin_app
from serving.api.gate import PROBED_PATHS
from serving.config import ServerConfig
from serving.gateway.gateway import Gateway
from serving.gateway.identity import Identity
from serving.gateway.key_store import KeyStore
from serving.gateway.principal import Scope
from tests.serving.api.conftest import Api, ApiMaker, chat_body, text_body

CHAT = "/v1/chat/completions"
OPEN = {*PROBED_PATHS}


@pytest.fixture
def store(tmp_path: Path) -> KeyStore:
    return KeyStore(tmp_path / "keys.sqlite")


@pytest.fixture
def closed(make_api: ApiMaker, store: KeyStore) -> Api:
    """An API that asks for keys."""
    access = AccessConfig(auth=AuthConfig(keys=Path("keys.sqlite")))
    return make_api(make_api.says("fine"), gateway=Gateway(access, identity=Identity(access, keys=store)))


def key(store: KeyStore, *scopes: Scope, tenant: str = "acme") -> dict[str, str]:
    made = store.create(tenant, scopes or [Scope.INFERENCE])
    return {"authorization": f"Bearer {made.text}"}


def walked(routes: list[BaseRoute], prefix: str = "") -> Iterator[tuple[str, str]]:
    """(method, a path that the route takes) of every route there is. A kind that is not known here fails the test."""
    for route in routes:
        if isinstance(route, Mount):
            yield from walked(list(route.routes or []), prefix + route.path)
            yield "GET", f"{prefix}{route.path}/app.js"
        elif isinstance(route, WebSocketRoute):
            yield "WEBSOCKET", prefix + _filled(route.path)
        else:
            assert isinstance(route, Route), f"{route!r} is not walked: say how it is asked"
            for method in sorted(route.methods or {"GET"}):
                yield method, prefix + _filled(route.path)


def _filled(path: str) -> str:
    return re.sub(r"\{[^}]*\}", "x", path)


async def socket_answer(app: Starlette, path: str, headers: dict[str, str]) -> dict[str, Any]:
    """The first message that a WebSocket handshake is answered with."""
    sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def receive() -> dict[str, str]:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        await sent.put(message)

    scope = {
        "type": "websocket",
        "http_version": "1.1",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in {"host": "localhost", **headers}.items()],
        "subprotocols": [],
        "extensions": {"websocket.http.response": {}},
    }
    task = asyncio.ensure_future(app(scope, receive, send))
    try:
        return await sent.get()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def refused_everywhere(app: Starlette, headers: dict[str, str], status: int) -> None:
    walk = set(walked(app.routes))
    assert len(walk) > 10
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        for method, path in sorted(walk):
            if path in OPEN:
                continue
            if method == "WEBSOCKET":
                assert (await socket_answer(app, path, headers))["status"] == status
                continue
            reply = await client.request(method, path, headers=headers, json={})
            assert reply.status_code == status, (method, path, reply.text)


async def test_12_no_path_but_the_probes_answers_without_a_key(closed: Api) -> None:
    await refused_everywhere(closed.app, {}, 401)
    await refused_everywhere(closed.app, {"authorization": "Bearer weft_aaaaaaaaaaaa_" + "A" * 43}, 401)
    for path in OPEN:
        assert (await closed.get(path)).status_code in (200, 503)
    for path in ("/nothing", "/health/", "/health/live/x", "//health", "/HEALTH", "/v1", "/docs"):
        assert (await closed.get(path)).status_code == 401, path
    assert closed.engine.requests == []


async def test_12_a_key_without_the_scope_opens_nothing(closed: Api, store: KeyStore) -> None:
    await refused_everywhere(closed.app, key(store, Scope.USAGE), 403)


async def test_12_the_admin_listener_takes_no_other_key_than_an_admins(closed: Api, store: KeyStore) -> None:
    admin = build_admin_app(closed.service, ServerConfig())
    await refused_everywhere(admin, {}, 401)
    await refused_everywhere(admin, key(store, Scope.INFERENCE), 403)


async def test_12_a_key_opens_and_a_wrong_revoked_or_doubled_one_does_not(closed: Api, store: KeyStore) -> None:
    good = key(store)
    assert (await closed.post(CHAT, chat_body(), headers=good)).status_code == 200
    secret = good["authorization"].removeprefix("Bearer ")
    assert (await closed.post(CHAT, chat_body(), headers={"x-api-key": secret})).status_code == 200
    reply = await closed.post(CHAT, chat_body(), headers={"authorization": f"Bearer {secret[:-1]}"})
    error = reply.json()["error"]
    assert (reply.status_code, error["code"]) == (401, "invalid_api_key")
    assert reply.headers["www-authenticate"].startswith("Bearer")
    assert secret[:-1] not in reply.text
    async with closed.client() as client:
        twice = [("authorization", f"Bearer {secret}"), ("authorization", "Bearer x")]
        assert (await client.post(CHAT, json=chat_body(), headers=twice)).status_code == 400
    store.revoke(secret.split("_")[1])
    assert (await closed.post(CHAT, chat_body(), headers=good)).status_code == 401


async def test_12_a_browser_asks_for_the_key_and_its_page_works_with_it(closed: Api, store: KeyStore) -> None:
    reply = await closed.get("/")
    assert (reply.status_code, reply.headers["www-authenticate"]) == (401, 'Basic realm="weft"')
    secret = key(store)["authorization"].removeprefix("Bearer ")
    async with closed.client() as client:
        assert (await client.get("/", auth=("", secret))).status_code == 200
        assert (await client.get("/v1/models", auth=("me", secret))).status_code == 200


async def test_13_control_and_metrics_are_not_for_everybody(make_api: ApiMaker, store: KeyStore) -> None:
    access = AccessConfig(auth=AuthConfig(keys=Path("k")), admin=AdminConfig(only_metrics_here=True))
    api = make_api(gateway=Gateway(access, identity=Identity(access, keys=store)))
    async with api.client() as client:
        assert (await client.get("/metrics", headers=key(store))).status_code == 403
        assert (await client.get("/metrics", headers=key(store, Scope.ADMIN))).status_code == 404
        assert (await client.post("/admin/drain", json={"on": True}, headers=key(store))).status_code == 404


async def test_18_a_web_socket_meets_the_same_checks(closed: Api, store: KeyStore) -> None:
    paths = [path for method, path in walked(closed.app.routes) if method == "WEBSOCKET"]
    for path in [*paths, "/v1/elsewhere"]:
        assert (await socket_answer(closed.app, path, {}))["status"] == 401
        foreign = {**key(store), "origin": "https://evil.example"}
        assert (await socket_answer(closed.app, path, foreign))["status"] == 403
        rebound = {**key(store), "host": "evil.example"}
        assert (await socket_answer(closed.app, path, rebound))["status"] == 421


async def test_18_what_reaches_the_engine_was_admitted(make_api: ApiMaker) -> None:
    """A frontend that forgets the gateway gets nothing out of the engine."""
    api = make_api(make_api.says("fine"))
    prepared = await api.service.generator.prepare(_text_request())
    with pytest.raises(Exception, match="not admitted"):
        await anext(api.service.generator.stream(prepared))
    assert api.engine.requests == []


async def test_11_a_clients_request_id_names_nothing_of_the_servers(closed: Api, store: KeyStore) -> None:
    headers = {**key(store), "x-request-id": "mine"}
    replies = [await closed.post(CHAT, chat_body(), headers=headers) for _ in range(2)]
    ids = {request.request_id for request in closed.engine.requests}
    assert len(ids) == 2
    assert "mine" not in ids
    assert {reply.headers["x-request-id"] for reply in replies} == ids


async def test_10_tenants_do_not_share_cached_pages_whatever_salt_they_send(closed: Api, store: KeyStore) -> None:
    for tenant, salt in (("a", "s"), ("b", "s"), ("a", "s"), ("a", "1:b:s"), ("b", "")):
        body = text_body(cache_salt=salt) if salt else text_body()
        reply = await closed.post("/v1/completions", body, headers=key(store, tenant=tenant))
        assert reply.status_code == 200, reply.text
    first, other, again, forged, plain = (request.cache_salt for request in closed.engine.requests)
    assert first == again
    assert len({first, other, forged, plain}) == 4


async def test_5_a_flood_of_false_keys_costs_no_prompt_and_no_stream(closed: Api) -> None:
    headers = {"authorization": "Bearer " + "x" * 8192}
    replies = await asyncio.gather(*(closed.post(CHAT, chat_body(n=8), headers=headers) for _ in range(50)))
    assert {reply.status_code for reply in replies} == {401}
    assert closed.service.slots.open == 0
    assert closed.service.gateway.leases == []


def _text_request() -> Any:
    from serving.generation.request import TextRequest

    return TextRequest(request_id="r", prompt="hi")
