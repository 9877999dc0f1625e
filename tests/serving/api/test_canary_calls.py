"""Canary prompts go the way of every request, and what their answers score is a metric."""

import asyncio
from pathlib import Path

from prometheus_client import generate_latest

from serving.api.canary_calls import TENANT, canary_calls
from serving.api.http import build_app
from serving.config import ServerConfig
from serving.engine.request import FinishReason, Priority
from serving.gateway.gateway import Gateway
from serving.gateway.ledger import Ledger, sum_usage
from serving.orchestrator.quality_watch.canary import Canary
from serving.orchestrator.quality_watch.quality_watch import QualityWatch
from tests.fakes.engine import Script
from tests.serving.api.conftest import ApiMaker

CAPITAL = Canary(name="capital", prompt="capital of France?", expected="Paris", system="Be brief.", max_tokens=50)
PATIENCE = 180.0


async def test_a_canary_is_asked_at_the_gate_in_the_batch_class_and_booked(make_api: ApiMaker, tmp_path: Path) -> None:
    gateway = Gateway(ledger=Ledger(tmp_path / "usage.sqlite"))
    api = make_api(make_api.says("It is Paris."), gateway=gateway)
    assert await canary_calls(api.service)(CAPITAL) == "It is Paris."
    (request,) = api.engine.requests
    assert (request.priority, request.tenant, request.sampling.max_tokens) == (Priority.BATCH, TENANT, 50)
    assert request.sampling.temperature == 0
    await gateway.close()
    (row,) = sum_usage(tmp_path / "usage.sqlite", since=None, until=None, tenant=None)
    assert row.tenant == TENANT


async def test_one_without_an_answer_keeps_its_score(make_api: ApiMaker) -> None:
    failing = Script(token_ids=[], finish=FinishReason.ERROR, error="broken")
    api = make_api(make_api.says("Paris"), failing, make_api.says("Rome"))
    registry = api.service.metrics.registry
    watch, ask = QualityWatch([CAPITAL], 0.0, registry), canary_calls(api.service)
    told, seen = "", list[tuple[bool, bool]]()
    for _ in range(3):
        await watch.try_one(CAPITAL, ask)
        told = generate_latest(registry).decode()
        seen.append(('weft_quality_score{canary="capital"} 1.0' in told, "weft_quality_drift 0.0" in told))
    assert seen == [(True, True), (True, True), (False, False)]
    assert 'weft_quality_canaries_total{outcome="failed"} 1.0' in told
    assert 'weft_quality_canaries_total{outcome="scored"} 2.0' in told
    assert "weft_quality_drift 1.0" in told


async def test_a_server_that_lives_asks_them_by_itself(make_api: ApiMaker) -> None:
    api = make_api(make_api.says("Paris"))
    service = api.service
    watch = QualityWatch([CAPITAL], 0.0, service.metrics.registry)
    config, gateway = ServerConfig(), service.gateway
    app = build_app(service.generator, service.engine, config, service.card, gateway=gateway, quality_watch=watch)
    async with asyncio.timeout(PATIENCE), app.router.lifespan_context(app):
        while len(api.engine.requests) < 2:
            await asyncio.sleep(0)
