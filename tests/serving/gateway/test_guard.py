"""What embeds stands behind the gateway too."""

import asyncio

import pytest

from serving.access import AccessConfig, TierConfig
from serving.engine.embedding import EmbedRequest
from serving.errors import EngineError, EngineUnavailableError, ForbiddenError, RateLimitedError
from serving.gateway.ask import Ask
from serving.gateway.gateway import Gateway
from tests.fakes.embedder import CountingEmbedder
from tests.serving.gateway.asks import principal
from tests.serving.gateway.clock import Clock

TEXTS = EmbedRequest(request_id="r", texts=((1, 2, 3), (4, 5)))


def ask(model: str = "encoder") -> Ask:
    return Ask.of_texts(TEXTS, model=model)


async def test_texts_that_nobody_admitted_do_not_reach_the_encoder() -> None:
    gateway, embedder = Gateway(), CountingEmbedder()
    guarded = gateway.guard_embedder(embedder)
    with pytest.raises(EngineError, match="not admitted"):
        await guarded.embed(TEXTS)
    assert embedder.asked == []
    async with gateway.admit(principal(), ask()) as lease:
        assert (await guarded.embed(TEXTS)).shape == (2, 4)
    assert (lease.used.prompt, lease.used.output) == (5, 0)


async def test_texts_count_in_a_tenants_minute() -> None:
    gateway = Gateway(AccessConfig(), now=Clock())
    guarded, tenant = gateway.guard_embedder(CountingEmbedder()), principal(tokens_per_minute=8)
    async with gateway.admit(tenant, ask()):
        await guarded.embed(TEXTS)
    with pytest.raises(RateLimitedError) as refused:
        async with gateway.admit(tenant, ask()):
            pass
    assert refused.value.code == "tokens_per_minute"


async def test_what_the_encoder_did_not_do_is_given_back() -> None:
    gateway = Gateway(AccessConfig(), now=Clock())
    tenant = principal(tokens_per_minute=8)
    lost = gateway.guard_embedder(CountingEmbedder(EngineUnavailableError("lost")))
    for _ in range(3):
        with pytest.raises(EngineUnavailableError):
            async with gateway.admit(tenant, ask()):
                await lost.embed(TEXTS)


async def test_whoever_leaves_has_used_the_tokens() -> None:
    gateway, embedder = Gateway(AccessConfig(), now=Clock()), CountingEmbedder(hangs=True)
    tenant, guarded = principal(tokens_per_minute=8), gateway.guard_embedder(embedder)

    async def embed() -> None:
        async with gateway.admit(tenant, ask()):
            await guarded.embed(TEXTS)

    leaving = asyncio.create_task(embed())
    await embedder.begun.wait()
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    with pytest.raises(RateLimitedError):
        await embed()


async def test_a_key_may_be_kept_from_the_encoder() -> None:
    kept = principal(models=("weft/scripted",))
    assert isinstance(kept.limits, TierConfig)
    with pytest.raises(ForbiddenError, match="encoder"):
        async with Gateway().admit(kept, ask()):
            pass
