"""The admin listener's erasure: what a running server holds goes too."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from serving.api.admin import build_admin_app
from serving.config import FilesConfig, ServerConfig
from serving.orchestrator.memory.memories import Memories
from serving.settings.memory import MemoryConfig
from tests.fakes.engine import Script
from tests.serving.api.conftest import Api, ApiMaker, chat_body
from tests.serving.api.responses.asking import ask, create


class Office:
    def __init__(self, make_api: ApiMaker, folder: Path) -> None:
        memories = Memories(MemoryConfig(path=folder / "memory.sqlite"))
        held = Script(token_ids=make_api.ids("on and on"), hold_after=3)
        scripts = [make_api.says("yes"), make_api.says("yes"), make_api.says("yes"), held]
        self.api: Api = make_api(*scripts, memories=memories, files=FilesConfig(folder=folder / "files"))
        state = self.api.app.state
        self.app = build_admin_app(state.service, ServerConfig(), holders=state.kept_data.holders)

    async def erase(self, status: int = 200, **body: Any) -> Any:
        transport = httpx.ASGITransport(app=self.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            reply = await client.post("/admin/erase", json=body)
        assert reply.status_code == status, reply.text
        return {one.pop("holder"): one for one in reply.json().get("data", [])}


@pytest.fixture
def office(make_api: ApiMaker, tmp_path: Path) -> Office:
    return Office(make_api, tmp_path)


async def test_a_users_data_go_from_a_server_that_runs_and_what_is_being_made_ends(office: Office) -> None:
    hers = await create(office.api, "Hello!", user="ada")
    his = await create(office.api, "Hello!", user="bob")
    assert (await office.api.post("/v1/chat/completions", chat_body(), headers={"weft-durable": "1"})).status_code < 500
    running = await create(office.api, "Hello!", user="ada", background=True)
    while len(office.api.engine.requests) < 4:
        await asyncio.sleep(0)
    looked = await office.erase(tenant="anonymous", user="ada", dry_run=True)
    assert looked["conversations"] == {"found": {"conversations": 2}, "erased": False, "left": "only looked at"}
    assert looked["background responses"]["found"] == {"responses": 1}
    assert looked["memory"]["found"]["entries"] == 1
    gone = await office.erase(tenant="anonymous", user="ada")
    assert gone["conversations"] == {"found": {"conversations": 2}, "erased": True, "left": None}
    assert gone["memory"]["erased"]
    assert gone["files"]["left"] == "of the whole tenant: nothing here says of which user it is"
    for name in (hers["id"], running["id"]):
        await ask(office.api, "GET", f"/v1/responses/{name}", 404)
    await ask(office.api, "GET", f"/v1/responses/{his['id']}")
    assert (await ask(office.api, "GET", "/v1/memory?user=ada"))["data"] == []
    assert len((await ask(office.api, "GET", "/v1/memory?user=bob"))["data"]) == 1


async def test_whose_data_are_meant_must_be_said(office: Office) -> None:
    await office.erase(400, user="ada")
    await office.erase(400, tenant="anonymous", user="")
