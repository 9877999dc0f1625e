"""A process that is killed at any point of a response leaves a conversation that is whole, and no tool runs twice."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from serving.api.caller import Caller
from serving.api.responses.body import ResponsesBody
from serving.api.responses.history import chat_messages
from serving.api.responses.made import MadeResponse, TurnService
from serving.api.responses.record import LOST, close_lost
from serving.api.responses.tools import BuiltinTool
from serving.errors import ConversationStoreError
from serving.orchestrator.tools.registry import ToolResult, ToolScope
from serving.orchestrator.turns import conversation_of
from serving.sessions.conversations.conversations import Conversations
from serving.sessions.conversations.keeper import Keeper
from serving.sessions.conversations.quota import UNBOUNDED, Quota
from serving.sessions.conversations.records import Item, Owner, StoredTurn
from serving.sessions.conversations.sqlite_store import SqliteConversationStore
from serving.sessions.conversations.store import Edit, Key, Rows
from tests.serving.api.conftest import Api, ApiMaker

OWNER = Owner("anonymous")
PAY = '<tool_call>{"name": "pay", "arguments": {"to": "ada"}}</tool_call>'
USER = {"role": "user", "content": "and now?"}


class Killed(BaseException):
    """The process is gone: nothing that it would do afterwards is done."""


class MortalStore(SqliteConversationStore):
    """Dies at one of its writes: before it, or right after."""

    def __init__(self, path: Path, death: int, *, written: bool) -> None:
        super().__init__(path)
        self._left = death
        self._written = written

    async def create(self, tree: str, owner: Owner, rows: Rows, quota: Quota = UNBOUNDED) -> None:
        await self._mortal(partial(super().create, tree, owner, rows, quota))

    async def change(
        self, tree: str, keys: Sequence[Key], work: Callable[[Rows], Edit], quota: Quota = UNBOUNDED
    ) -> Any:
        return await self._mortal(partial(super().change, tree, keys, work, quota))

    async def lease(self, names: Sequence[str], seconds: float) -> None:
        await self._mortal(partial(super().lease, names, seconds))

    async def release(self, names: Sequence[str]) -> None:
        await self._mortal(partial(super().release, names))

    async def _mortal(self, write: Callable[[], Any]) -> Any:
        if self._left < 0:
            raise Killed
        self._left -= 1
        if self._left >= 0 or self._written:
            outcome = await write()
            if self._left >= 0:
                return outcome
        raise Killed


class Pay:
    """Does what must not be done twice."""

    name = "pay"
    description = "Pays."
    idempotent = False

    def __init__(self) -> None:
        self.runs = 0
        self.parameters: dict[str, Any] = {"type": "object"}

    async def run(self, arguments: dict[str, Any], scope: ToolScope) -> ToolResult:
        self.runs += 1
        return ToolResult(text="paid")


async def never(name: str) -> None:
    raise AssertionError(f"nobody asked to end {name}")


async def respond(api: Api, conversations: Conversations, name: str, **fields: Any) -> dict[str, Any]:
    body = ResponsesBody(input="pay ada", conversation=name, **fields)
    turns = TurnService(service=api.service, conversations=conversations)
    return await MadeResponse(turns, body, Caller(request_id=f"r{len(api.engine.requests)}")).whole()


def check_whole(items: Sequence[Item]) -> None:
    """Whoever goes on from it has a prompt; and no item is unfinished."""
    conversation_of([*chat_messages(None, items), USER])
    assert all(item["status"] in ("completed", "failed", "incomplete") for item in items)


def paying(make_api: ApiMaker) -> tuple[Api, Pay]:
    scripts = [make_api.says(f"At once.{PAY}"), make_api.says("Paid.")]
    api = make_api()
    api.engine.script_for = lambda _: scripts[(len(api.engine.requests)) % 2]
    tool = Pay()
    api.service.toolbox.registry.add(tool)
    return api, tool


@pytest.mark.parametrize("written", [False, True], ids=["before the write", "after the write"])
async def test_a_kill_at_each_write_leaves_the_conversation_whole_and_runs_no_tool_twice(
    make_api: ApiMaker, tmp_path: Path, written: bool
) -> None:
    died = 0
    for death in range(100):
        api, tool = paying(make_api)
        path = tmp_path / f"{death}.sqlite"
        living = Conversations(SqliteConversationStore(path))
        name = (await living.create_conversation(OWNER, {}, [], 1)).id
        mortal = Conversations(MortalStore(path, death, written=written), lease_seconds=0.0)
        tools = [BuiltinTool(name="pay")]
        try:
            await respond(api, mortal, name, tools=tools)
        except Killed:
            died += 1
        else:
            assert tool.runs == 1
            break
        finally:
            await mortal.store.close()
        runs = tool.runs
        await Keeper(living, partial(close_lost, living), never).tick()
        assert (await living.conversation(OWNER, name)).busy is None
        items = await living.items(OWNER, name)
        check_whole(items)
        calls = [item for item in items if item["type"] == "mcp_call"]
        assert tool.runs == runs <= len(calls) <= 1, "what ran is known to have run"
        api.engine.script_for = lambda _, api=api: api.engine.scripts[0]
        api.engine.scripts = [make_api.says("Yes.")]
        again = await respond(api, living, name, tools=tools)
        assert again["status"] == "completed"
        assert tool.runs == runs
        await living.store.close()
    else:
        pytest.fail("it never came to its end")
    assert died >= 7  # begun, its lease, text, call, result, text, ended


async def test_a_call_that_may_have_run_says_so_to_the_model_and_the_client(make_api: ApiMaker, tmp_path: Path) -> None:
    store = SqliteConversationStore(tmp_path / "c.sqlite")
    dead, living = Conversations(store, lease_seconds=0.0), Conversations(store)
    name = (await living.create_conversation(OWNER, {}, [], 1)).id
    api, tool = paying(make_api)

    class Dies(Pay):
        async def run(self, arguments: dict[str, Any], scope: ToolScope) -> ToolResult:
            raise Killed

    api.service.toolbox.registry.remove_group("pay")
    api.service.toolbox.registry.add(Dies())
    with pytest.raises(BaseException):  # noqa: B017, PT011 -- what kills is no error of any kind
        await respond(api, dead, name, tools=[BuiltinTool(name="pay")])
    closed: list[StoredTurn] = []

    async def close(stored: StoredTurn) -> None:
        closed.append(stored)
        await close_lost(living, stored)

    await Keeper(living, close, never).tick()
    (stored,) = closed
    found = await living.find(OWNER, stored.turn.id)
    assert (found.facts["status"], found.facts["error"]["message"]) == ("failed", LOST)
    (call,) = [item for item in found.outputs if item["type"] == "mcp_call"]
    assert call["status"] == "incomplete"
    messages = chat_messages(None, await living.items(OWNER, name))
    assert messages[-1]["role"] == "tool"
    assert "nobody knows" in messages[-1]["content"]
    assert tool.runs == 0
    await store.close()


class FullStore(SqliteConversationStore):
    """Writes no end while it is full."""

    full = True

    async def change(
        self, tree: str, keys: Sequence[Key], work: Callable[[Rows], Edit], quota: Quota = UNBOUNDED
    ) -> Any:
        def checked(found: Rows) -> Edit:
            edit = work(found)
            kinds = {kind for kind, _ in edit.put}
            if self.full and "facts" in kinds and "item" not in kinds:  # a beginning has items
                raise ConversationStoreError("the store of conversations cannot be used: disk is full")
            return edit

        return await super().change(tree, keys, checked, quota)


@pytest.mark.parametrize("same", [True, False], ids=["by its own process", "by another"])
async def test_a_response_whose_end_could_not_be_written_says_so_once_it_is_closed(
    make_api: ApiMaker, tmp_path: Path, same: bool
) -> None:
    store = FullStore(tmp_path / "c.sqlite")
    full = Conversations(store, lease_seconds=0.0)
    name = (await full.create_conversation(OWNER, {}, [], 1)).id
    with pytest.raises(ConversationStoreError) as told:
        await respond(make_api(make_api.says("Paid.")), full, name)
    closing = full if same else Conversations(store, lease_seconds=0.0)
    await Keeper(closing, partial(close_lost, closing), never).tick()
    assert (await full.conversation(OWNER, name)).busy is not None  # and the end is not forgotten
    store.full = False
    await Keeper(closing, partial(close_lost, closing), never).tick()
    conversation = await full.conversation(OWNER, name)
    assert conversation.busy is None
    found = await full.find(OWNER, conversation.head or "")
    assert found.facts["status"] == "failed"
    assert found.facts["error"]["message"] == (told.value.message if same else LOST)
    assert [item["status"] for item in found.outputs] == ["completed"]
    assert full.unwritten_end(found.turn.id) is None or not same
    await store.close()
