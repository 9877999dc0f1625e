"""What a refused client sees, through the SDK that most of them use and in plain headers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import openai
import pytest

from serving.access import AccessConfig, AuthConfig, TierConfig
from serving.gateway.gateway import Gateway
from serving.gateway.identity import Identity
from serving.gateway.key_store import KeyStore
from serving.gateway.principal import Scope
from tests.serving.api.conftest import MODEL, Api, ApiMaker, chat_body
from tests.serving.api.listening import listening

MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.fixture
def keyed(make_api: ApiMaker, tmp_path: Path) -> tuple[Api, KeyStore]:
    store = KeyStore(tmp_path / "keys.sqlite")
    tier = TierConfig(requests_per_minute=2, tokens_per_minute=400, output_tokens=100)
    access = AccessConfig(auth=AuthConfig(keys=Path("k")), tiers={"default": tier})
    return make_api(make_api.says("fine"), gateway=Gateway(access, identity=Identity(access, keys=store))), store


@asynccontextmanager
async def client_of(api: Api, key: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with (
        listening(api.app) as port,
        openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=key, max_retries=0, timeout=120) as client,
    ):
        yield client


async def test_the_sdk_raises_what_it_raises_for_openai(keyed: tuple[Api, KeyStore]) -> None:
    api, store = keyed
    async with client_of(api, "sk-nobody") as client:
        with pytest.raises(openai.AuthenticationError) as unknown:
            await client.models.list()
        assert unknown.value.code == "invalid_api_key"
    async with client_of(api, store.create("acme", [Scope.USAGE]).text) as client:
        with pytest.raises(openai.PermissionDeniedError) as scoped:
            await client.models.list()
        assert scoped.value.code == "scope_missing"
    async with client_of(api, store.create("acme", [Scope.INFERENCE]).text) as client:
        with pytest.raises(openai.BadRequestError) as long:
            await client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=101)
        assert long.value.code == "tier_output_exceeded"
        for _ in range(2):
            await client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=10)
        with pytest.raises(openai.RateLimitError) as limited:
            await client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=10)
        assert limited.value.code == "requests_per_minute"
        assert 1 <= int(limited.value.response.headers["retry-after"]) <= 61
        with pytest.raises(openai.RateLimitError):
            await client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)


async def test_a_draining_server_is_the_sdks_internal_server_error_with_a_time_to_come_back(
    keyed: tuple[Api, KeyStore],
) -> None:
    api, store = keyed
    api.service.gateway.drain()
    async with client_of(api, store.create("acme", [Scope.INFERENCE]).text) as client:
        with pytest.raises(openai.InternalServerError) as refused:
            await client.chat.completions.create(model=MODEL, messages=MESSAGES)
        assert (refused.value.status_code, refused.value.code) == (503, "server_draining")
        assert int(refused.value.response.headers["retry-after"]) >= 1


@pytest.mark.parametrize("stream", [False, True])
async def test_every_reply_says_what_is_left(keyed: tuple[Api, KeyStore], stream: bool) -> None:
    api, store = keyed
    headers = {"authorization": f"Bearer {store.create('acme', [Scope.INFERENCE]).text}"}
    reply = await api.post("/v1/chat/completions", chat_body(max_tokens=50, stream=stream), headers=headers)
    assert reply.status_code == 200
    assert reply.headers["x-ratelimit-limit-requests"] == "2"
    assert reply.headers["x-ratelimit-remaining-requests"] == "1"
    assert reply.headers["x-ratelimit-limit-tokens"] == "400"
    assert 0 < int(reply.headers["x-ratelimit-remaining-tokens"]) < 350
    assert int(reply.headers["x-ratelimit-reset-requests"].removesuffix("s")) in (60, 61)
    assert float(reply.headers["weft-predicted-wait"]) == 0.0


async def test_metrics_count_tenants_and_refusals(keyed: tuple[Api, KeyStore], make_api: ApiMaker) -> None:
    from prometheus_client import CollectorRegistry, generate_latest

    from serving.gateway.gateway_metrics import MOST_UNNAMED_TENANTS, GatewayMetrics

    registry = CollectorRegistry()
    metrics = GatewayMetrics(registry, ["named"])
    for i in range(200):
        metrics.admitted(f"t{i}")
    metrics.refused("named", "concurrency")
    text = generate_latest(registry).decode()
    assert text.count('weft_tenant_requests_total{outcome="admitted"') == MOST_UNNAMED_TENANTS + 1
    assert f'weft_tenant_requests_total{{outcome="admitted",tenant="other"}} {200 - MOST_UNNAMED_TENANTS}.0' in text
    assert 'weft_admission_refusals_total{reason="concurrency"} 1.0' in text
