"""The page and its numbers: to whom they are shown, and what must hold of the files."""

import re
from dataclasses import replace

import pytest

from serving.access import AccessConfig, AdminConfig
from serving.api.admin import build_admin_app
from serving.api.status.routes import CONTENT_SECURITY_POLICY, PAGE_DIRECTORY
from serving.config import ServerConfig
from serving.gateway.gateway import Gateway
from serving.gateway.identity import Identity
from serving.gateway.principal import Credentials, Principal, Scope
from tests.serving.api.conftest import Api, ApiMaker

KEY = "k" * 40


async def test_the_page_and_its_files_have_a_strict_policy(make_api: ApiMaker) -> None:
    api = make_api()
    for path in ("/status", *(f"/status/{file.name}" for file in PAGE_DIRECTORY.iterdir())):
        reply = await api.get(path)
        assert reply.status_code == 200
        assert reply.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
        assert reply.headers["x-content-type-options"] == "nosniff"
    assert "'unsafe" not in CONTENT_SECURITY_POLICY
    for path in ("/status/../routes.py", "/status/%2e%2e/routes.py", "/status/nothing.js"):
        assert (await api.get(path)).status_code == 404


def test_the_page_asks_for_nothing_elsewhere_and_names_every_module() -> None:
    index = (PAGE_DIRECTORY / "index.html").read_text(encoding="utf-8")
    named = set(re.findall(r'(?:src|href)="/status/([^"]+)"', index))
    assert named == {file.name for file in PAGE_DIRECTORY.iterdir()} - {"index.html"}
    assert re.findall(r'(?:src|href)="(?!/status/)([^"]*)"', index) == []
    assert re.findall(r"<[^>]*\s(?:style|on\w+)=", index) == []
    for file in PAGE_DIRECTORY.iterdir():
        text = file.read_text(encoding="utf-8")
        assert re.findall(r"https?://(?!www\.w3\.org/)", text) == []
        assert "innerHTML" not in text


@pytest.mark.parametrize(("scope", "status"), [(Scope.INFERENCE, 403), (Scope.ADMIN, 200)])
async def test_numbers_need_the_scope_that_metrics_need(make_api: ApiMaker, scope: Scope, status: int) -> None:
    api = make_api(gateway=_closed(scope))
    async with api.client() as client:
        assert (await client.get("/status.json")).status_code == 401
        challenged = await client.get("/status")
        assert challenged.status_code == 401
        assert challenged.headers["www-authenticate"].startswith("Basic"), "so that a browser asks the person"
        headers = {"authorization": f"Bearer {KEY}"}
        assert (await client.get("/status.json", headers=headers)).status_code == status


async def test_numbers_can_be_kept_to_the_admin_listener(make_api: ApiMaker) -> None:
    api = make_api(gateway=Gateway(AccessConfig(admin=AdminConfig(port=0, only_metrics_here=True))))
    admin = Api(build_admin_app(api.service, ServerConfig()), api.engine)
    for path in ("/status", "/status.json", "/status/status.js"):
        assert (await api.get(path)).status_code == 404
        assert (await admin.get(path)).status_code == 200


def _closed(scope: Scope) -> Gateway:
    access = AccessConfig()
    identity = Identity(access, api_key=KEY)
    known = identity.principal

    async def principal(credentials: Credentials) -> Principal:
        return replace(await known(credentials), scopes=frozenset((scope,)))

    identity.principal = principal  # type: ignore[method-assign]
    return Gateway(access, identity=identity)
