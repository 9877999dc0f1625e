"""Answers that serve again: through the same gate, told to the client, and never for another's question."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from serving.access import AccessConfig, AuthConfig, TenantConfig, TierConfig
from serving.api.admin import build_admin_app
from serving.client import Client
from serving.config import ServerConfig
from serving.engine.client import EngineStats
from serving.engine.embedding import Embedder
from serving.engine.request import GenerateRequest
from serving.errors import EngineError
from serving.gateway.gateway import Gateway
from serving.gateway.identity import Identity
from serving.gateway.key_store import KeyStore
from serving.gateway.ledger import Ledger, sum_usage
from serving.gateway.principal import Scope
from serving.generation.text_embedder import TextEmbedder
from serving.orchestrator.semantic_cache.semantic_cache import SemanticCache
from serving.settings.moderation import JudgeConfig, ModerationConfig, PolicyConfig, RuleConfig
from serving.settings.semantic_cache import SemanticCacheConfig
from tests.fakes.embedder import CountingEmbedder
from tests.fakes.engine import Script, ScriptedEngine
from tests.fakes.word_encoder import word_text_embedder
from tests.serving.api.conftest import WINDOW, Api, ApiMaker, chat_body, text_of
from tests.serving.api.grpc.serving_grpc import serving_grpc
from tests.serving.api.test_websocket import socket_to
from tests.serving.api.test_websocket import text_of as socket_text

CHAT = "/v1/chat/completions"
HEADER = "x-weft-semantic-cache"
WORDS = "what is the capital of france and germany please tell me now i will kill you long"
ASKED, NEAR, FAR = (
    "what is the capital of france please tell me",
    "please tell me what is the capital of france",
    "i will kill you",
)
ANSWER, OTHER = "paris is the capital of france", "germany now"
WEIGHTS = "fp_1"


@dataclass
class VersionedEngine(ScriptedEngine):
    weights: str = WEIGHTS

    async def stats(self) -> EngineStats:
        return replace(await super().stats(), weights=self.weights)


Office = Callable[..., Api]


@pytest.fixture
def office(make_api: ApiMaker, tmp_path: Path) -> Office:
    def made(
        *answers: str, mode: Any = "serve", embedder: Embedder | None = None, version: str = WEIGHTS, **options: Any
    ) -> Api:
        scripts = [make_api.says(text, weights=(version, version)) for text in answers or (ANSWER, OTHER)]
        engine = VersionedEngine(scripts=scripts, vocab_size=make_api.tokenizer.vocab_size, max_model_len=WINDOW)
        engine.weights = version
        encoder: TextEmbedder = word_text_embedder(tmp_path / "encoder", WORDS)
        if embedder is not None:
            encoder = replace(encoder, embedder=embedder)
        config = SemanticCacheConfig(**{"mode": mode, "timeout_seconds": 60.0, **options.pop("config", {})})
        return make_api(engine=engine, encoder=encoder, semantic_cache=config, **options)

    return made


def asking(text: str = ASKED, system: str | None = None, **fields: Any) -> dict[str, Any]:
    first = [] if system is None else [{"role": "system", "content": system}]
    return chat_body(messages=[*first, {"role": "user", "content": text}], **fields)


async def said(api: Api, body: dict[str, Any], **options: Any) -> str:
    reply = await api.post(CHAT, body, **options)
    assert reply.status_code == 200, reply.text
    return reply.json()["choices"][0]["message"]["content"]


def cache_of(api: Api) -> SemanticCache:
    assert api.service.semantic_cache is not None
    return api.service.semantic_cache


async def counted(api: Api) -> dict[str, float]:
    text = (await api.get("/metrics")).text
    found = re.findall(r'weft_semantic_cache_(?:lookups|shadow_hits)_total{.*?outcome="(\w+)"} (\S+)', text)
    return {outcome: float(number) for outcome, number in found}


async def test_a_near_question_gets_the_answer_again_and_the_reply_says_so(office: Office) -> None:
    api = office()
    fresh = await api.post(CHAT, asking())
    assert HEADER not in fresh.headers
    assert "semantic_cache" not in fresh.json()
    for text in (ASKED, NEAR):
        again = await api.post(CHAT, asking(text))
        body = again.json()
        assert body["choices"] == fresh.json()["choices"]
        assert body["system_fingerprint"] == WEIGHTS
        assert body["semantic_cache"]["similarity"] == pytest.approx(1, abs=1e-3)
        assert again.headers[HEADER].startswith("hit; similarity=")
        assert body["usage"]["completion_tokens"] == 0
        assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == body["usage"]["prompt_tokens"] > 0
    assert len(api.engine.requests) == 1
    assert await said(api, asking(FAR)) == OTHER
    assert await counted(api) == {"miss": 2, "hit": 2}


async def test_a_stream_gets_it_as_one_piece(office: Office) -> None:
    api = office()
    await said(api, asking())
    chunks = await api.events(CHAT, asking(NEAR, stream_options={"include_usage": True}))
    assert text_of(chunks) == ANSWER
    role, whole, usage = chunks
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert whole["choices"][0]["finish_reason"] == "stop"
    assert "similarity" in whole["semantic_cache"]
    assert usage["usage"]["completion_tokens"] == 0
    async with socket_to(api) as socket:
        await socket.ask("a", asking(NEAR, stream=True))
        assert socket_text(await socket.until_end("a")) == ANSWER
    assert len(api.engine.requests) == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0.5},
        {"seed": 7},
        {"max_tokens": 300},
        {"stop": ["x"]},
        {"cache_salt": "mine"},
        {"chat_template_kwargs": {"shout": True}},
        {"reasoning_effort": "none"},
        {"system": "Be brief."},
    ],
    ids=str,
)
async def test_what_changes_the_answer_is_part_of_the_key(office: Office, fields: dict[str, Any]) -> None:
    api = office()
    await said(api, asking())
    assert await said(api, asking(**fields)) == OTHER
    assert await said(api, asking(**fields)) == OTHER
    assert len(api.engine.requests) == 2


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 2},
        {"logprobs": True},
        {"tools": [TOOL]},
        {"return_token_ids": True},
        {"messages": [{"role": r, "content": ASKED} for r in ("user", "assistant", "user")]},
        {"guided_regex": "[a-z ]+"},
        {"temperature": 1.5},
    ],
    ids=str,
)
async def test_what_is_not_a_plain_turn_is_never_looked_up(office: Office, fields: dict[str, Any]) -> None:
    api = office(config={"max_temperature": 1.0})
    for _ in range(2):
        reply = await api.post(CHAT, asking() | fields)
        assert reply.status_code == 200, reply.text
        assert HEADER not in reply.headers
    assert await counted(api) == {}


async def test_over_grpc_answers_are_generated(office: Office) -> None:
    api = office(ANSWER, OTHER)
    await said(api, asking())
    async with serving_grpc(api) as address, Client(address) as client:
        reply = await client.chat([{"role": "user", "content": ASKED}], timeout=180)
    assert reply.text == OTHER


async def test_an_answer_that_did_not_end_of_itself_is_not_kept(office: Office) -> None:
    api = office()
    await said(api, asking(max_tokens=5))
    await said(api, asking(max_tokens=5))
    assert len(api.engine.requests) == 2
    assert cache_of(api).size[0] == 0


async def test_other_weights_answer_anew_and_what_the_old_ones_said_is_gone(office: Office) -> None:
    api = office()
    await said(api, asking())
    assert isinstance(api.engine, VersionedEngine)
    api.engine.weights = "fp_2"
    assert await said(api, asking()) == OTHER
    assert cache_of(api).size[0] == 0  # the script still draws with the old ones, so the new answer is not kept


async def test_weights_without_a_version_are_not_kept(office: Office) -> None:
    api = office(version="")
    for _ in range(2):
        await said(api, asking())
    assert await counted(api) == {"unversioned": 2}


async def test_a_shadow_serves_nothing_and_counts_what_it_would_have_served_wrongly(office: Office) -> None:
    api = office(ANSWER, ANSWER, OTHER, mode="shadow")
    for answer in (ANSWER, ANSWER, OTHER):
        reply = await api.post(CHAT, asking(NEAR))
        assert reply.json()["choices"][0]["message"]["content"] == answer
        assert HEADER not in reply.headers
        await cache_of(api).settled()
    assert await counted(api) == {"miss": 1, "hit": 2, "agreed": 1, "differed": 1}
    assert len(api.engine.requests) == 3


@pytest.mark.parametrize("mode", ["serve", "shadow"])
async def test_an_encoder_that_fails_costs_no_answer(office: Office, mode: str) -> None:
    api = office(mode=mode, embedder=CountingEmbedder(EngineError("no encoder")))
    assert await said(api, asking()) == ANSWER
    await cache_of(api).settled()
    assert await counted(api) == {"failed": 1}


async def test_an_encoder_that_hangs_is_not_waited_for(office: Office) -> None:
    api = office(embedder=CountingEmbedder(hangs=True), config={"timeout_seconds": 0.01})
    assert await said(api, asking()) == ANSWER
    assert await counted(api) == {"failed": 1}


async def test_a_question_too_long_for_the_encoder_is_answered_anew(office: Office) -> None:
    api = office()
    for end in ("france", "germany"):
        await said(api, asking("long " * 70 + end))
    assert await counted(api) == {"too_long": 2}
    assert len(api.engine.requests) == 2


async def test_a_served_answer_is_moderated_like_any_other(office: Office) -> None:
    rules = (RuleConfig(category="harassment/threatening", output="cut", input="block"),)
    strict = ModerationConfig(
        judges={"rules": JudgeConfig(kind="rules")},
        policies={"none": PolicyConfig(), "strict": PolicyConfig(rules=rules, hold_back_tokens=40)},
        policy="none",
    )
    api = office("it was calm, i will kill you, and so on and on, for long", moderation=strict)
    await said(api, asking())
    assert api.service.moderation is not None
    tightened = office(moderation=replace(strict, policy="strict")).service.moderation
    object.__setattr__(api.service, "moderation", tightened)
    reply = await api.post(CHAT, asking(NEAR))
    (choice,) = reply.json()["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("it was calm, ", "content_filter")
    assert HEADER in reply.headers
    chunks = await api.events(CHAT, asking(NEAR))
    assert text_of(chunks) == "it was calm, "
    assert (await api.post(CHAT, asking(FAR))).json()["error"]["code"] == "content_filter"


async def test_tenants_share_nothing_are_limited_and_pay_for_the_prompt_alone(office: Office, tmp_path: Path) -> None:
    keys, ledger = KeyStore(tmp_path / "keys.sqlite"), Ledger(tmp_path / "usage.sqlite")
    access = AccessConfig(
        auth=AuthConfig(keys=tmp_path / "keys.sqlite"),
        tiers={"few": TierConfig(requests_per_minute=2)},
        tenants={"acme": TenantConfig(tier="few"), "other": TenantConfig(tier="few"), "off": TenantConfig(tier="few")},
    )
    gateway = Gateway(access, identity=Identity(access, keys=keys), ledger=ledger)
    config = {"tenants": {"acme": "serve", "other": "serve"}}
    api = office(ANSWER, OTHER, OTHER, mode="off", gateway=gateway, config=config)
    headers = {
        tenant: {"authorization": f"Bearer {keys.create(tenant, [Scope.INFERENCE]).text}"} for tenant in access.tenants
    }
    await said(api, asking(), headers=headers["acme"])
    assert await said(api, asking(), headers=headers["other"]) == OTHER
    assert await said(api, asking(), headers=headers["off"]) == OTHER
    assert cache_of(api).size[0] == 2
    reply = await api.post(CHAT, asking(), headers=headers["acme"])
    assert reply.json()["choices"][0]["message"]["content"] == ANSWER
    tokens = reply.json()["usage"]["prompt_tokens"]
    assert (await api.post(CHAT, asking(), headers=headers["acme"])).status_code == 429
    await gateway.close()
    (row,) = sum_usage(tmp_path / "usage.sqlite", since=None, until=None, tenant="acme")
    assert (row.prompt_tokens, row.output_tokens) == (2 * tokens, len(ANSWER) + 1)


@pytest.mark.parametrize("mode", ["serve", "shadow"])
async def test_what_is_being_answered_while_it_is_cleared_is_not_kept(office: Office, mode: str) -> None:
    api = office(mode=mode)
    script = api.engine.scripts[0]

    def erased(_: GenerateRequest) -> Script:
        cache_of(api).drop("anonymous")
        return script

    api.engine.script_for = erased
    await said(api, asking())
    await cache_of(api).settled()
    assert cache_of(api).size[0] == 0
    api.engine.script_for = None
    await said(api, asking())
    await cache_of(api).settled()
    assert cache_of(api).size[0] == 1, "what begins afterwards is"


async def test_an_operator_sees_its_size_and_clears_it(office: Office) -> None:
    api = office()
    await said(api, asking())
    app = build_admin_app(api.service, ServerConfig())
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        assert (await client.get("/admin/semantic_cache")).json()["entries"] == 1
        cleared = "/admin/semantic_cache/clear"
        assert (await client.post(cleared, json={"tenant": "nobody"})).json() == {"dropped": 0}
        assert (await client.post(cleared, json={"all": True})).status_code == 400
        assert (await client.post(cleared, json={})).json() == {"dropped": 1}
    assert await said(api, asking()) == OTHER
