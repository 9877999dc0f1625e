"""What a client sees of its tenant's room for conversations."""

from collections.abc import AsyncIterator

import pytest

from serving.access import AccessConfig, StorageConfig, TierConfig
from serving.gateway.gateway import Gateway
from serving.gateway.principal import ANONYMOUS
from tests.serving.api.conftest import Api, ApiMaker
from tests.serving.api.responses.asking import ask, create, refused, stream, texts


@pytest.fixture
async def small(make_api: ApiMaker) -> AsyncIterator[Api]:
    """A tenant of it may keep two conversations of six items."""
    tier = TierConfig(best_priority="interactive", storage=StorageConfig(conversations=2, conversation_items=6))
    api = make_api(*[make_api.says("yes")] * 8, gateway=Gateway(AccessConfig(tiers={ANONYMOUS: tier, "default": tier})))
    yield api
    await api.app.state.responses.close()


async def test_a_tier_bounds_what_is_kept_and_the_refusal_says_what_to_do(small: Api) -> None:
    first = await create(small)
    await create(small)
    reply = await small.post("/v1/responses", {"input": "hi"})
    error = reply.json()["error"]
    assert (reply.status_code, error["type"], error["code"]) == (429, "insufficient_quota", "conversations")
    assert "delete some" in error["message"]
    assert (reply.headers["x-quota-limit"], reply.headers["x-quota-used"]) == ("2", "2")
    assert reply.headers["x-should-retry"] == "false"
    assert "retry-after" not in reply.headers
    assert (await refused(small, 429, stream=True))["code"] == "conversations"
    await create(small, store=False)  # nothing is kept of it
    await create(small, previous_response_id=first["id"])
    assert len(small.engine.requests) == 4  # no model was asked for what could not be kept
    assert (await ask(small, "POST", "/v1/conversations", 429, json={}))["error"]["code"] == "conversations"


async def test_a_turn_that_finds_no_room_for_its_answer_ends_with_the_reason_and_is_whole(small: Api) -> None:
    made = await ask(small, "POST", "/v1/conversations", json={})
    item = {"type": "message", "role": "user", "content": "hi"}
    path = f"/v1/conversations/{made['id']}/items"
    await ask(small, "POST", path, json={"items": [item] * 5})
    *_, last = await stream(small, conversation=made["id"])
    assert last["type"] == "response.failed"
    assert last["response"]["error"]["code"] == "conversation_items"
    kept = await ask(small, "GET", f"/v1/responses/{last['response']['id']}")
    assert (kept["status"], texts(kept["output"])) == ("failed", texts(last["response"]["output"]))
    error = (await ask(small, "POST", path, 429, json={"items": [item]}))["error"]
    assert error["code"] == "conversation_items"
