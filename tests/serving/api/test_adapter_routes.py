"""Adapters as models: chosen by name in each protocol, listed, and loaded by the admin listener alone."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from serving.api.admin import build_admin_app
from serving.config import ServerConfig
from serving.engine.adapter_messages import LoadAdapter, PinAdapter, UnloadAdapter
from serving.generation.text_embedder import TextEmbedder
from serving.settings.routing import RoutingConfig, RoutingRule
from tests.fakes.embedder import ENCODER, tiny_text_embedder
from tests.serving.api.conftest import MODEL, Api, ApiMaker, chat_body, text_body

CHAT, TEXT, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/messages"


class Served:
    def __init__(self, make_api: ApiMaker, encoder: TextEmbedder | None = None) -> None:
        self.api: Api = make_api(make_api.says("fine"), adapters=True, encoder=encoder)
        routing = RoutingConfig(rules=(RoutingRule(model="auto", target=MODEL),))
        self.admin = build_admin_app(replace(self.api.service, routing=routing), ServerConfig())

    async def ask(self, method: str, path: str, body: Any = None) -> httpx.Response:
        transport = httpx.ASGITransport(app=self.admin)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.request(method, path, json=body)


@pytest.fixture
async def served(make_api: ApiMaker) -> Served:
    made = Served(make_api)
    assert (await made.ask("POST", "/v1/adapters", {"name": "poet", "folder": "poems"})).status_code == 200
    return made


@pytest.mark.parametrize("name", ["poet", f"{MODEL}:poet"])
@pytest.mark.parametrize("stream", [False, True])
async def test_each_endpoint_takes_an_adapter_for_a_model(served: Served, name: str, stream: bool) -> None:
    messages = {"model": name, "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}
    for path, body in ((CHAT, chat_body(model=name)), (TEXT, text_body(model=name)), (MESSAGES, messages)):
        reply = await served.api.post(path, {**body, "stream": stream})
        assert reply.status_code == 200, reply.text
        assert f'"model":"{name}"' in reply.text
        assert served.api.engine.requests[-1].adapter == "poet"


async def test_the_models_own_name_means_no_adapter(served: Served) -> None:
    for body in (chat_body(), chat_body(model=None)):
        assert (await served.api.post(CHAT, body)).status_code == 200
        assert served.api.engine.requests[-1].adapter == ""


@pytest.mark.parametrize("name", ["painter", f"{MODEL}:painter", "other:poet", "po et", ""])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_name_that_nobody_has_is_not_found(served: Served, name: str, stream: bool) -> None:
    reply = await served.api.post(CHAT, chat_body(model=name, stream=stream))
    assert reply.status_code == 404
    assert reply.json()["error"]["code"] == "model_not_found"
    assert served.api.engine.requests == []


async def test_models_are_listed_with_their_adapters(served: Served) -> None:
    listed = (await served.api.get("/v1/models")).json()["data"]
    assert [(card["id"], card.get("parent")) for card in listed] == [(MODEL, None), ("poet", MODEL)]
    assert (await served.api.get("/v1/models/poet")).json()["id"] == "poet"
    assert (await served.api.get("/v1/models/painter")).status_code == 404


async def test_the_admin_listener_loads_pins_and_forgets_them(served: Served) -> None:
    operations = served.api.engine.operations
    assert operations[0] == LoadAdapter(name="poet", folder="poems")
    reply = await served.ask("POST", "/v1/adapters/poet/pin", {"pinned": True})
    assert reply.json() == {"adapters": [{"name": "poet", "slot": None, "pinned": True, "streams": 0}]}
    assert operations[-1] == PinAdapter(name="poet", pinned=True)
    assert (await served.ask("GET", "/v1/adapters")).json() == reply.json()
    assert (await served.ask("DELETE", "/v1/adapters/poet")).json() == {"adapters": []}
    assert operations[-1] == UnloadAdapter(name="poet")
    assert (await served.ask("DELETE", "/v1/adapters/poet")).status_code == 404
    assert (await served.ask("POST", "/v1/adapters", {"name": MODEL, "folder": "x"})).status_code == 400
    assert (await served.ask("POST", "/v1/adapters", {"name": "x"})).status_code == 400
    assert (await served.api.post("/v1/adapters", {"name": "x", "folder": "x"})).status_code == 404


async def test_where_the_deployment_has_no_adapters_their_names_are_no_models(make_api: ApiMaker) -> None:
    api = make_api(make_api.says("fine"))
    assert (await api.post(CHAT, chat_body(model="poet"))).status_code == 404
    assert api.engine.operations == []


async def test_an_adapter_is_not_given_the_name_of_another_model(make_api: ApiMaker, tmp_path: Path) -> None:
    served = Served(make_api, encoder=tiny_text_embedder(tmp_path))
    for name in (MODEL, ENCODER, "auto"):
        reply = await served.ask("POST", "/v1/adapters", {"name": name, "folder": "poems"})
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, "adapter_exists")
    assert served.api.engine.operations == []
