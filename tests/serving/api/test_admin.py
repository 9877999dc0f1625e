import asyncio
import logging
from pathlib import Path
from typing import Any

import httpx
import pytest

from serving.access import AccessConfig, AuthConfig, TenantConfig, TierConfig
from serving.api.admin import build_admin_app
from serving.api.admin_listener import AdminListener
from serving.config import ServerConfig
from serving.engine.operation import LoadWeights, Pause, Resume, Sleep, StartTrace, StopTrace, Wake
from serving.errors import SetupError
from serving.gateway.gateway import Gateway
from serving.gateway.identity import Identity
from serving.gateway.key_store import KeyStore
from serving.gateway.ledger import Ledger
from serving.gateway.principal import Scope
from tests.serving.api.conftest import Api, ApiMaker, chat_body

CHAT = "/v1/chat/completions"


class Office:
    def __init__(self, make_api: ApiMaker, folder: Path) -> None:
        self.keys = KeyStore(folder / "keys.sqlite")
        self.ledger = Ledger(folder / "usage.sqlite")
        access = AccessConfig(
            auth=AuthConfig(keys=folder / "keys.sqlite"),
            tiers={"gold": TierConfig(concurrency=3)},
            tenants={"acme": TenantConfig(tier="gold"), "gone": TenantConfig(disabled=True)},
        )
        gateway = Gateway(access, identity=Identity(access, keys=self.keys), ledger=self.ledger)
        self.api: Api = make_api(make_api.says("fine"), gateway=gateway)
        self.app = build_admin_app(self.api.service, ServerConfig())
        self.admin = self.key(Scope.ADMIN)

    def key(self, *scopes: Scope, tenant: str = "acme") -> dict[str, str]:
        return {"authorization": f"Bearer {self.keys.create(tenant, scopes).text}"}

    async def ask(self, method: str, path: str, body: Any = None, headers: Any = None) -> httpx.Response:
        transport = httpx.ASGITransport(app=self.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.request(method, path, json=body, headers=headers or self.admin)


@pytest.fixture
def office(make_api: ApiMaker, tmp_path: Path) -> Office:
    return Office(make_api, tmp_path)


async def test_a_key_is_made_shown_once_used_rotated_and_revoked(office: Office) -> None:
    made = await office.ask("POST", "/admin/keys", {"tenant": "new", "scopes": ["inference"], "name": "ci"})
    assert made.status_code == 201
    headers = {"authorization": f"Bearer {made.json()['key']}"}
    assert (await office.api.post(CHAT, chat_body(), headers=headers)).status_code == 200
    listed = await office.ask("GET", "/admin/keys")
    assert made.json()["key"] not in listed.text
    assert {"new", "acme"} == {key["tenant"] for key in listed.json()["keys"]}
    name = made.json()["id"]
    turned = (await office.ask("POST", f"/admin/keys/{name}/rotate", {"overlap_seconds": 0})).json()["key"]
    assert (await office.api.post(CHAT, chat_body(), headers=headers)).status_code == 401
    headers = {"authorization": f"Bearer {turned}"}
    for verb, status in (("disable", 401), ("enable", 200), ("revoke", 401), ("enable", 401)):
        assert (await office.ask("POST", f"/admin/keys/{name}/{verb}")).status_code == 200
        assert (await office.api.post(CHAT, chat_body(), headers=headers)).status_code == status
    assert (await office.ask("POST", "/admin/keys/nobody/revoke")).status_code == 404


@pytest.mark.parametrize(
    "body",
    [{}, {"tenant": "a b"}, {"tenant": "anonymous"}, {"tenant": "a", "scopes": ["root"]}, {"tenant": "a", "x": 1}],
)
async def test_a_malformed_key_is_refused(office: Office, body: Any) -> None:
    assert (await office.ask("POST", "/admin/keys", body)).status_code == 400


async def test_a_disabled_tenants_keys_open_nothing(office: Office) -> None:
    reply = await office.api.post(CHAT, chat_body(), headers=office.key(Scope.INFERENCE, tenant="gone"))
    assert (reply.status_code, reply.json()["error"]["code"]) == (403, "tenant_disabled")


async def test_usage_is_everybodys_for_an_admin_and_its_own_for_a_tenant(office: Office) -> None:
    for tenant in ("acme", "other"):
        headers = office.key(Scope.INFERENCE, tenant=tenant)
        assert (await office.api.post(CHAT, chat_body(), headers=headers)).status_code == 200
    await asyncio.to_thread(office.ledger.close)
    everybody = (await office.ask("GET", "/admin/usage")).json()["usage"]
    assert {row["tenant"] for row in everybody} == {"acme", "other"}
    assert everybody[0]["output_tokens"] == 5
    own = office.key(Scope.USAGE, tenant="other")
    seen = (await office.ask("GET", "/admin/usage?tenant=acme", headers=own)).json()["usage"]
    assert {row["tenant"] for row in seen} == {"other"}
    assert (await office.ask("GET", "/admin/usage?since=99999999999")).json()["usage"] == []
    assert (await office.ask("GET", "/admin/usage?since=now")).status_code == 400


async def test_drain_refuses_new_requests_until_it_is_off_and_status_tells(office: Office) -> None:
    headers = office.key(Scope.INFERENCE)
    assert (await office.ask("POST", "/admin/drain", {"on": True})).json()["draining"]
    assert (await office.api.post(CHAT, chat_body(), headers=headers)).status_code == 503
    status = (await office.ask("GET", "/admin/status")).json()
    assert (status["draining"], status["authentication"], status["degradation"]) == (True, True, "normal")
    await office.ask("POST", "/admin/drain", {"on": False})
    assert (await office.api.post(CHAT, chat_body(), headers=headers)).status_code == 200


async def test_tenants_are_listed_with_their_tiers(office: Office) -> None:
    found = (await office.ask("GET", "/admin/tenants")).json()
    assert {row["tenant"]: (row["tier"], row["disabled"]) for row in found["tenants"]} == {
        "acme": ("gold", False),
        "gone": ("default", True),
    }
    assert found["tiers"]["gold"]["concurrency"] == 3


async def test_it_listens_on_a_port_of_its_own_from_start_to_stop(
    office: Office, caplog: pytest.LogCaptureFixture
) -> None:
    listener = AdminListener(office.app, office.api.service.metrics, "127.0.0.1", 0)
    with caplog.at_level(logging.INFO):
        await listener.start()
    (told,) = (record for record in caplog.records if record.getMessage() == "listening")
    assert vars(told)["fields"]["port"] == listener.port
    url = f"http://127.0.0.1:{listener.port}"
    async with httpx.AsyncClient(timeout=120) as client:
        assert (await client.get(f"{url}/admin/status")).status_code == 401
        assert (await client.get(f"{url}/admin/status", headers=office.admin)).status_code == 200
        second = AdminListener(office.app, office.api.service.metrics, "127.0.0.1", listener.port)
        with pytest.raises(SetupError):
            await second.start()
        await listener.stop(0)
        with pytest.raises(httpx.ConnectError):
            await client.get(f"{url}/health/live")


async def test_operations_reach_the_engine_and_only_the_admin_listener_has_them(office: Office) -> None:
    public = office.key(Scope.INFERENCE)
    for path, body, operation in (
        ("pause", {}, Pause()),
        ("resume", {}, Resume()),
        ("sleep", {}, Sleep()),
        ("sleep", {"weights": "none"}, Sleep(weights="none")),
        ("wake", {}, Wake()),
        ("weights", {"checkpoint": "new"}, LoadWeights(checkpoint="new")),
        ("trace/start", {"name": "noon"}, StartTrace(name="noon")),
        ("trace/stop", {}, StopTrace()),
    ):
        reply = await office.ask("POST", f"/v1/engine/{path}", body)
        assert reply.status_code == 200, reply.text
        assert reply.json()["state"] in ("running", "paused")
        assert office.api.engine.operations[-1] == operation
        assert (await office.ask("POST", f"/v1/engine/{path}", {"x": 1})).status_code == 400
        assert (await office.api.post(f"/v1/engine/{path}", body, headers=public)).status_code == 404
    assert (await office.ask("GET", "/v1/engine")).json() == {"state": "running", "weights": None}
    assert (await office.ask("POST", "/v1/engine/weights", {})).status_code == 400
    assert (await office.ask("POST", "/v1/engine/pause", headers=public)).status_code == 403
