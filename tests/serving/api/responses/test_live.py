"""Responses in the background: they outlive their connection, and are read again from any event on."""

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, cast

import httpx
import pytest

from serving.api.responses.live import LiveResponses
from serving.errors import OverloadedError, RateLimitedError
from serving.orchestrator.tools.registry import ToolResult, ToolScope
from serving.sessions.conversations.records import Owner
from tests.fakes.engine import Script
from tests.serving.api.conftest import MODEL, Api, ApiMaker
from tests.serving.api.listening import listening
from tests.serving.api.responses.asking import ask, create, refused, texts, told


async def until(api: Api, response_id: str, *statuses: str) -> Any:
    while True:
        found = await ask(api, "GET", f"/v1/responses/{response_id}")
        if found["status"] in statuses:
            return found
        await asyncio.sleep(0)


async def test_it_is_queued_and_then_complete(make_api: ApiMaker) -> None:
    api = make_api(make_api.says("Done."))
    queued = await create(api, background=True)
    assert (queued["status"], queued["output"]) == ("queued", [])
    done = await until(api, queued["id"], "completed")
    assert texts(done["output"]) == ["Done."]
    assert (await ask(api, "POST", f"/v1/responses/{queued['id']}/cancel"))["status"] == "completed"


async def test_it_waits_for_a_full_engine_where_others_are_refused(
    make_api: ApiMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    api, looks = make_api(make_api.says("Done.")), iter([False, False, False, True])
    monkeypatch.setattr("serving.api.generation.ROOM_LOOK_SECONDS", 0.0)
    monkeypatch.setattr(api.app.state.service.gateway, "has_room", lambda *_, **__: next(looks))
    made = await create(api, background=True)
    await until(api, made["id"], "completed")
    assert list(looks) == []


async def test_one_that_is_waited_for_does_not_wait_for_room(
    make_api: ApiMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    api, looks = make_api(make_api.says("Done.")), iter([False])
    monkeypatch.setattr(api.app.state.service.gateway, "has_room", lambda *_, **__: next(looks))
    assert (await create(api))["status"] == "completed"
    assert list(looks) == [False]  # nor does it cost a look


async def test_its_events_are_read_from_any_on(make_api: ApiMaker) -> None:
    api = make_api(make_api.says("Some words", chunk=2))
    reply = await api.post("/v1/responses", {"model": MODEL, "input": "hi", "background": True, "stream": True})
    events = told(reply.text)
    assert [event["type"] for event in events[:3]] == ["response.created", "response.queued", "response.in_progress"]
    path = f"/v1/responses/{events[0]['response']['id']}?stream=true"
    assert told((await api.get(path)).text) == events
    for after in (0, 4, len(events) - 2):
        assert told((await api.get(f"{path}&starting_after={after}")).text) == events[after + 1 :]


async def test_where_its_events_are_gone_they_are_made_again_of_what_is_kept(make_api: ApiMaker) -> None:
    api = make_api(make_api.says("Some words", chunk=2))
    made = await create(api, background=True)
    whole = await until(api, made["id"], "completed")
    api.app.state.responses.live.drop_ended()
    path = f"/v1/responses/{made['id']}?stream=true"
    again = told((await api.get(path)).text)
    assert again[-1]["response"] == whole
    assert [event["sequence_number"] for event in again] == list(range(len(again)))
    assert "".join(event.get("delta", "") for event in again) == "Some words"
    late = told((await api.get(f"{path}&starting_after=5000")).text)
    assert [(event["type"], event["sequence_number"]) for event in late] == [("response.completed", 5001)]


async def test_cancelling_ends_it_with_what_was_said(make_api: ApiMaker) -> None:
    api = make_api(Script(token_ids=make_api.ids("Halfway there"), hold_after=7))
    made = await create(api, background=True)
    path = f"/v1/responses/{made['id']}"
    waiting = asyncio.ensure_future(api.get(f"{path}?stream=true"))
    await until(api, made["id"], "in_progress")
    while not api.engine.requests:
        await asyncio.sleep(0)
    while api.app.state.responses.live.get(made["id"]).told < 8:
        await asyncio.sleep(0)
    cancelled = await ask(api, "POST", f"{path}/cancel")
    assert cancelled["status"] == "cancelled"
    assert "Halfway".startswith(texts(cancelled["output"])[0])
    assert cancelled["output"][0]["status"] == "incomplete"
    assert api.engine.closed
    read = told((await waiting).text)
    assert (read[-1]["type"], read[-1]["response"]) == ("response.failed", cancelled)
    assert (await ask(api, "POST", f"{path}/cancel"))["status"] == "cancelled"


async def test_cancelling_it_many_times_at_once_ends_it_once(make_api: ApiMaker) -> None:
    api = make_api(Script(token_ids=make_api.ids("Halfway there"), hold_after=7), make_api.says("Yes."))
    conversation = (await ask(api, "POST", "/v1/conversations", json={}))["id"]
    made = await create(api, background=True, conversation=conversation)
    live = api.app.state.responses.live.get(made["id"])
    while live.told < 8:
        await asyncio.sleep(0)
    leaves = asyncio.create_task(live.cancel())
    asked = [asyncio.create_task(live.cancel()) for _ in range(3)]
    await asyncio.sleep(0)
    leaves.cancel()
    await asyncio.gather(*asked)
    assert (await ask(api, "GET", f"/v1/responses/{made['id']}"))["status"] == "cancelled"
    await create(api, "go on", conversation=conversation)


async def test_a_response_whose_conversation_is_deleted_ends_without_an_error_in_the_log(
    make_api: ApiMaker, caplog: pytest.LogCaptureFixture
) -> None:
    api = make_api(Script(token_ids=make_api.ids("Halfway there"), hold_after=7))
    conversation = (await ask(api, "POST", "/v1/conversations", json={}))["id"]
    made = await create(api, background=True, conversation=conversation)
    live = api.app.state.responses.live.get(made["id"])
    while live.told < 8:
        await asyncio.sleep(0)
    await ask(api, "DELETE", f"/v1/conversations/{conversation}")
    await live.cancel()
    assert api.engine.closed
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []
    await ask(api, "GET", f"/v1/responses/{made['id']}", status=404)


async def test_another_process_can_ask_for_its_end(make_api: ApiMaker) -> None:
    api = make_api(Script(token_ids=make_api.ids("Halfway there"), hold_after=7))
    made = await create(api, background=True)
    await until(api, made["id"], "in_progress")
    responses = api.app.state.responses
    await responses.keeper.tick()
    assert (await ask(api, "GET", f"/v1/responses/{made['id']}"))["status"] == "in_progress"
    await responses.conversations.ask_end(Owner("anonymous"), made["id"])
    await responses.keeper.tick()
    assert (await ask(api, "GET", f"/v1/responses/{made['id']}"))["status"] == "cancelled"


async def test_a_server_that_stops_says_that_it_was_not_the_client(make_api: ApiMaker) -> None:
    api = make_api(Script(token_ids=make_api.ids("Halfway there"), hold_after=7))
    made = await create(api, background=True)
    while api.app.state.responses.live.get(made["id"]).told < 8:
        await asyncio.sleep(0)
    await api.app.state.responses.live.close()
    failed = await ask(api, "GET", f"/v1/responses/{made['id']}")
    assert (failed["status"], failed["error"]["code"]) == ("failed", "server_stopping")
    assert texts(failed["output"])


async def test_a_client_that_leaves_ends_a_response_that_is_not_in_the_background(make_api: ApiMaker) -> None:
    api = make_api(Script(token_ids=make_api.ids("Halfway there"), hold_after=7), make_api.says("Yes."))
    async with listening(api.app) as port, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=99) as http:
        name = (await http.post("/v1/conversations", json={})).json()["id"]
        body = {"input": "hi", "conversation": name, "stream": True}
        async with http.stream("POST", "/v1/responses", json=body) as reply:
            async for line in reply.aiter_lines():
                if '"delta"' in line:
                    break
        page: list[Any] = []
        while not page:
            page = (await http.get(f"/v1/conversations/{name}/items?order=asc")).json()["data"]
        assert "Halfway".startswith(page[1]["content"][0]["text"])
        assert page[1]["status"] == "incomplete"
        again = await http.post("/v1/responses", json={"input": "go on", "conversation": name})
        assert again.json()["status"] == "completed"
        assert api.engine.closed


async def test_one_that_fails_says_so_and_frees_its_conversation(make_api: ApiMaker) -> None:
    api = make_api(make_api.says("ok"))
    conversation = await ask(api, "POST", "/v1/conversations", json={})
    made = await create(api, "x" * 9999, background=True, conversation=conversation["id"])
    failed = await until(api, made["id"], "failed")
    assert failed["error"]["code"] == "context_length_exceeded"
    await create(api, "hi", conversation=conversation["id"])


async def test_what_is_refused_at_once_never_was(make_api: ApiMaker) -> None:
    api = make_api(make_api.says("ok"))
    error = await refused(api, 404, background=True, previous_response_id=f"resp_{'0' * 48}")
    assert error["code"] == "response_not_found"


async def test_those_that_are_not_in_the_background_are_neither_cancelled_nor_streamed_again(
    make_api: ApiMaker,
) -> None:
    api = make_api(make_api.says("ok"))
    made = await create(api)
    await ask(api, "POST", f"/v1/responses/{made['id']}/cancel", 400)
    await ask(api, "GET", f"/v1/responses/{made['id']}?stream=true", 400)


@pytest.mark.parametrize("query", ["stream=maybe", "starting_after=1", "stream=true&starting_after=-1", "include=x"])
async def test_a_question_that_is_none_is_refused(make_api: ApiMaker, query: str) -> None:
    api = make_api(make_api.says("ok"))
    made = await create(api, background=True)
    await ask(api, "GET", f"/v1/responses/{made['id']}?{query}", 400)
    await until(api, made["id"], "completed")


class Held:
    """A response that begins when it is told to, and never ends of itself."""

    failure = None

    def __init__(self, tenant: str, number: int, *, begins: bool = True) -> None:
        self.owner, self.id, self.response = Owner(tenant), f"{tenant}{number}", {}
        self.begins = asyncio.Event()
        if begins:
            self.begins.set()

    async def begin(self, *, queued: bool) -> None:
        await self.begins.wait()

    async def background(self) -> AsyncIterator[Any]:
        await asyncio.Event().wait()
        yield


async def start(live: LiveResponses, tenant: str, number: int, **options: Any) -> None:
    await live.start(cast(Any, Held(tenant, number, **options)))


async def test_one_that_is_cancelled_before_it_begins_has_an_end() -> None:
    live = LiveResponses()
    await start(live, "greedy", 0)
    made = live.get("greedy0")
    assert made is not None
    await made.cancel()
    assert made.ended
    assert [event async for event in made.follow(-1)] == []
    await live.close()


async def test_a_response_that_is_cancelled_at_once_leaves_its_conversation_free(
    make_api: ApiMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = make_api(make_api.says("Fine."), make_api.says("Fine."))
    conversation = (await ask(api, "POST", "/v1/conversations", json={}))["id"]
    start_it = LiveResponses.start

    async def start_and_cancel(live: LiveResponses, made: Any) -> Any:
        told = await start_it(live, made)
        await live.cancel(made.id)
        return told

    with monkeypatch.context() as at_once:
        at_once.setattr(LiveResponses, "start", start_and_cancel)
        made = await create(api, background=True, conversation=conversation)
    assert (await ask(api, "GET", f"/v1/responses/{made['id']}"))["status"] == "cancelled"
    assert (await create(api, conversation=conversation))["status"] == "completed"


@dataclass
class Slow:
    """A server's tool that never ends, and says that it runs."""

    running: asyncio.Event
    name: str = "slow"
    description: str = "x"
    parameters: dict[str, Any] = field(default_factory=lambda: {"type": "object"})
    idempotent: bool = True

    async def run(self, arguments: dict[str, Any], scope: ToolScope) -> ToolResult:
        self.running.set()
        await asyncio.Event().wait()
        raise AssertionError


async def test_a_function_that_was_asked_for_beside_a_tool_is_not_waited_for_after_the_response_was_cancelled(
    make_api: ApiMaker,
) -> None:
    calls = [f'<tool_call>{{"name": "{name}", "arguments": {{}}}}</tool_call>' for name in ("add", "slow")]
    api = make_api(make_api.says("".join(calls)), make_api.says("Hello."))
    running = asyncio.Event()
    api.service.toolbox.registry.add(Slow(running))
    conversation = (await ask(api, "POST", "/v1/conversations", json={}))["id"]
    tools = [{"type": "function", "name": "add", "parameters": {"type": "object"}}, {"type": "slow"}]
    made = await create(api, background=True, conversation=conversation, tools=tools)
    await running.wait()
    done = await ask(api, "POST", f"/v1/responses/{made['id']}/cancel")
    assert [(item["type"], item["status"]) for item in done["output"]] == [
        ("function_call", "incomplete"),
        ("mcp_call", "incomplete"),
    ]
    assert texts((await create(api, "never mind", conversation=conversation))["output"]) == ["Hello."]


async def test_a_tenant_takes_its_share_of_the_places_and_leaves_the_rest_to_others() -> None:
    live = LiveResponses(most=8)
    await start(live, "greedy", 0)
    late = Held("greedy", 1, begins=False)
    starting = asyncio.ensure_future(live.start(cast(Any, late)))
    await asyncio.sleep(0)
    with pytest.raises(RateLimitedError) as refused:  # what is beginning counts
        await start(live, "greedy", 2)
    assert refused.value.code == "background_share"
    assert "2 responses" in refused.value.message
    late.begins.set()
    await starting
    for tenant in ("b", "c", "d"):
        await start(live, tenant, 0)
        await start(live, tenant, 1)
    with pytest.raises(OverloadedError) as full:
        await start(live, "e", 0)
    assert full.value.code == "too_many_responses"
    await live.cancel("greedy0")
    await start(live, "greedy", 3)
    await live.close()


async def test_where_nobody_says_who_they_are_all_places_are_everybodys() -> None:
    live = LiveResponses(one_tenant=True, most=4)
    for number in range(4):
        await start(live, "anonymous", number)
    with pytest.raises(OverloadedError):
        await start(live, "anonymous", 4)
    await live.close()
