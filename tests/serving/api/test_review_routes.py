"""What reviewers see and say on the admin listener."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from serving.access import AccessConfig, AuthConfig
from serving.api.admin import build_admin_app
from serving.config import ServerConfig
from serving.gateway.gateway import Gateway
from serving.gateway.identity import Identity
from serving.gateway.key_store import KeyStore
from serving.gateway.principal import Scope
from serving.settings.moderation import JudgeConfig, ModerationConfig, PolicyConfig, RuleConfig
from tests.serving.api.conftest import Api, ApiMaker, chat_body

CATEGORY = "harassment/threatening"


def moderation(folder: Path) -> ModerationConfig:
    policy = PolicyConfig(rules=(RuleConfig(category=CATEGORY, input="route"),))
    return ModerationConfig(
        judges={"rules": JudgeConfig(kind="rules")}, policies={"p": policy}, policy="p", review=folder / "review.sqlite"
    )


class Office:
    def __init__(self, make_api: ApiMaker, folder: Path) -> None:
        keys = KeyStore(folder / "keys.sqlite")
        access = AccessConfig(auth=AuthConfig(keys=folder / "keys.sqlite"))
        gateway = Gateway(access, identity=Identity(access, keys=keys))
        self.api: Api = make_api(*[make_api.says("fine")] * 3, gateway=gateway, moderation=moderation(folder))
        self.app = build_admin_app(self.api.service, ServerConfig())
        self.reviewer = keys.create("office", [Scope.ADMIN])
        self.client = {"authorization": f"Bearer {keys.create('acme', [Scope.INFERENCE]).text}"}

    async def say(self, text: str) -> None:
        body = chat_body(messages=[{"role": "user", "content": text}])
        assert (await self.api.post("/v1/chat/completions", body, headers=self.client)).status_code == 200

    async def ask(self, method: str, path: str, body: Any = None, *, status: int = 200, headers: Any = None) -> Any:
        headers = headers or {"authorization": f"Bearer {self.reviewer.text}"}
        transport = httpx.ASGITransport(app=self.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            reply = await client.request(method, path, json=body, headers=headers)
        assert reply.status_code == status, reply.text
        return reply.json()


@pytest.fixture
def office(make_api: ApiMaker, tmp_path: Path) -> Office:
    return Office(make_api, tmp_path)


async def test_a_person_reads_what_was_routed_and_says_that_it_was_a_false_positive(office: Office) -> None:
    await office.say("I will kill you, said the cat to the mouse")
    await office.say("how do you do")
    await office.say("I will kill you")
    page = await office.ask("GET", f"/admin/reviews?category={CATEGORY}&tenant=acme&done=false&limit=1")
    assert page["has_more"]
    rest = await office.ask("GET", f"/admin/reviews?done=false&after={page['last_id']}")
    assert [one["excerpt"] for one in (*page["data"], *rest["data"])] == [
        "I will kill you",
        "I will kill you, said the cat to the mouse",
    ]
    assert not rest["has_more"]
    path = f"/admin/reviews/{rest['data'][0]['id']}"
    assert await office.ask("GET", path) == rest["data"][0]
    assert (rest["data"][0]["category"], rest["data"][0]["judge"], rest["data"][0]["done"]) == (
        CATEGORY,
        "rules",
        False,
    )
    decided = await office.ask("POST", path, {"verdict": "wrong", "note": "a fable"})
    assert (decided["verdict"], decided["note"], decided["decided_by"]) == ("wrong", "a fable", office.reviewer.id)
    assert (await office.ask("GET", "/admin/reviews?done=true"))["data"] == [decided]
    transport = httpx.ASGITransport(app=office.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        told = (await client.get("/metrics", headers={"authorization": f"Bearer {office.reviewer.text}"})).text
    assert f'weft_moderation_reviews{{category="{CATEGORY}",state="wrong"}} 1.0' in told
    assert f'weft_moderation_reviews{{category="{CATEGORY}",state="waiting"}} 1.0' in told


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/admin/reviews?done=maybe", None, 400),
        ("GET", "/admin/reviews?limit=0", None, 400),
        ("GET", "/admin/reviews?limit=101", None, 400),
        ("GET", "/admin/reviews?after=nobody", None, 404),
        ("GET", "/admin/reviews/nobody", None, 404),
        ("POST", "/admin/reviews/nobody", {"verdict": "right"}, 404),
        ("POST", "/admin/reviews/nobody", {"verdict": "perhaps"}, 400),
        ("POST", "/admin/reviews/nobody", {"note": "no verdict"}, 400),
        ("POST", "/admin/reviews/nobody", {"verdict": "right", "note": "x" * 2001}, 400),
    ],
)
async def test_what_cannot_be_is_refused(office: Office, method: str, path: str, body: Any, status: int) -> None:
    assert "error" in await office.ask(method, path, body, status=status)


async def test_who_is_no_administrator_reads_nothing(office: Office) -> None:
    for method, path in (("GET", "/admin/reviews"), ("POST", "/admin/reviews/x")):
        await office.ask(method, path, {"verdict": "right"}, status=403, headers=office.client)


async def test_a_server_that_routes_nothing_says_so(make_api: ApiMaker) -> None:
    app = build_admin_app(make_api(make_api.says("x")).service, ServerConfig())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://localhost") as client:
        reply = await client.get("/admin/reviews")
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "no_reviews")
