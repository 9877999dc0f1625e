"""What conversations promise, whatever store they are in."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from serving.errors import ConflictError, ConversationStoreError, NotFoundError, QuotaError
from serving.sessions.conversations.conversations import Conversations, NotHeldError
from serving.sessions.conversations.ids import RESPONSE, new_id, new_tree, tree_of
from serving.sessions.conversations.postgres_store import PostgresConversationStore
from serving.sessions.conversations.quota import Quota, Size
from serving.sessions.conversations.records import Begun, Item, Owner
from serving.sessions.conversations.redis_store import RedisConversationStore
from serving.sessions.conversations.sqlite_store import SqliteConversationStore
from serving.sessions.conversations.store import ConversationStore
from tests.fakes.redis_server import RedisServer

STORES = ("sqlite", "postgres", "redis")
AN_HOUR = 3600.0

Maker = Callable[..., Conversations]


@pytest.fixture(params=STORES)
async def make(request: pytest.FixtureRequest, tmp_path: Path, redis_server: RedisServer) -> AsyncIterator[Maker]:
    """Conversations over one store: each call is another process."""
    stores: list[ConversationStore] = []

    def make_store(retain_seconds: float | None) -> ConversationStore:
        if request.param == "sqlite":
            return SqliteConversationStore(tmp_path / "conversations.sqlite", retain_seconds)
        if request.param == "redis":
            return RedisConversationStore(redis_server.url, retain_seconds)
        return PostgresConversationStore(request.getfixturevalue("postgres_server").url, retain_seconds)

    def make_one(lease_seconds: float = AN_HOUR, retain_seconds: float | None = None) -> Conversations:
        stores.append(make_store(retain_seconds))
        return Conversations(stores[-1], lease_seconds=lease_seconds)

    yield make_one
    for store in stores:
        await store.close()


@pytest.fixture
def owner(request: pytest.FixtureRequest) -> Owner:
    """The servers are shared: a tenant for each test."""
    return Owner(request.node.name, "ada")


def said(text: str, **fields: Any) -> Item:
    return {"id": f"msg_{text}", "type": "message", "role": "user", "content": text, **fields}


async def begin(conversations: Conversations, owner: Owner, text: str, **where: str) -> Begun:
    tree = tree_of("".join(where.values())) or new_tree()
    return await conversations.begin(
        owner, new_id(RESPONSE, tree), facts={"model": "m"}, inputs=[said(text)], created_at=1, **where
    )


async def answer(conversations: Conversations, owner: Owner, text: str, **where: str) -> str:
    """The id of a turn with one output item."""
    begun = await begin(conversations, owner, text, **where)
    await conversations.put_output(begun.turn.id, 0, said(f"re: {text}"))
    await conversations.end(begun.turn.id, {"status": "completed"}, joins=True)
    return begun.turn.id


def texts(items: Any) -> list[str]:
    return [item["content"] for item in items]


async def test_a_turn_is_read_as_it_was_written(make: Maker, owner: Owner) -> None:
    conversations = make()
    begun = await begin(conversations, owner, "héllo")
    assert begun.history == []
    stored = await make().find(owner, begun.turn.id)
    assert (texts(stored.inputs), stored.outputs, stored.facts) == (["héllo"], [], {"model": "m"})
    assert not stored.turn.ended
    await conversations.put_output(begun.turn.id, 0, said("half"))
    await conversations.put_output(begun.turn.id, 1, said("more"))
    await conversations.put_output(begun.turn.id, 0, said("whole"))
    await conversations.put_facts(begun.turn.id, {"model": "m", "n": 2})
    stored = await make().find(owner, begun.turn.id)
    assert (texts(stored.outputs), stored.facts) == (["whole", "more"], {"model": "m", "n": 2})
    await conversations.end(begun.turn.id, {"status": "completed"}, joins=True)
    stored = await make().find(owner, begun.turn.id)
    assert stored.turn.ended
    assert stored.facts == {"status": "completed"}
    with pytest.raises(NotHeldError):
        await conversations.put_output(begun.turn.id, 2, said("late"))


async def test_turns_with_one_parent_are_branches_that_do_not_see_each_other(make: Maker, owner: Owner) -> None:
    conversations = make()
    root = await answer(conversations, owner, "a")
    left = await answer(conversations, owner, "b", parent=root)
    right = await answer(conversations, owner, "c", parent=root)
    assert texts(await conversations.history(owner, left)) == ["a", "re: a", "b", "re: b"]
    deep = await begin(conversations, owner, "d", parent=left)
    assert texts(deep.history) == ["a", "re: a", "b", "re: b"]
    assert texts((await begin(conversations, owner, "e", parent=right)).history) == ["a", "re: a", "c", "re: c"]


async def test_a_parent_that_is_being_made_is_a_conflict(make: Maker, owner: Owner) -> None:
    conversations = make()
    begun = await begin(conversations, owner, "a")
    for asked in (begin(make(), owner, "b", parent=begun.turn.id), make().history(owner, begun.turn.id)):
        with pytest.raises(ConflictError) as refused:
            await asked
        assert refused.value.code == "response_in_progress"


async def test_a_turn_that_is_forgotten_was_never_there(make: Maker, owner: Owner) -> None:
    conversations = make()
    alone = await begin(conversations, owner, "a")
    await conversations.forget(alone.turn.id)
    assert await conversations.export(owner.tenant) == []
    made = await conversations.create_conversation(owner, {}, [said("start")], 5)
    begun = await begin(conversations, owner, "b", conversation=made.id)
    await conversations.put_output(begun.turn.id, 0, said("half"))
    await conversations.forget(begun.turn.id)
    with pytest.raises(NotFoundError):
        await conversations.find(owner, begun.turn.id)
    (tree,) = await conversations.export(owner.tenant)
    assert [item["content"] for turn in tree["turns"] for item in turn["items"]] == ["start"]
    await answer(conversations, owner, "c", conversation=made.id)
    assert texts(await conversations.items(owner, made.id)) == ["start", "c", "re: c"]


async def test_a_conversation_grows_by_turns_that_join_it_and_takes_one_at_a_time(make: Maker, owner: Owner) -> None:
    conversations = make()
    made = await conversations.create_conversation(owner, {"topic": "x"}, [said("start")], 5)
    begun = await begin(conversations, owner, "a", conversation=made.id)
    assert texts(begun.history) == ["start"]
    with pytest.raises(ConflictError) as refused:
        await begin(make(), owner, "b", conversation=made.id)
    assert refused.value.code == "conversation_locked"
    with pytest.raises(ConflictError):
        await make().add_items(owner, made.id, [said("b")], 6)
    assert texts(await conversations.items(owner, made.id)) == ["start"]  # the turn has not ended
    await conversations.end(begun.turn.id, {}, joins=False)
    assert texts(await conversations.items(owner, made.id)) == ["start"]
    await answer(conversations, owner, "c", conversation=made.id)
    await conversations.add_items(owner, made.id, [said("d"), said("e")], 7)
    assert texts(await make().items(owner, made.id)) == ["start", "c", "re: c", "d", "e"]
    assert (await make().conversation(owner, made.id)).metadata == {"topic": "x"}
    await make().set_metadata(owner, made.id, {"topic": "y"})
    assert (await make().conversation(owner, made.id)).metadata == {"topic": "y"}


async def test_an_item_and_a_response_and_a_conversation_can_be_deleted(make: Maker, owner: Owner) -> None:
    conversations = make()
    made = await conversations.create_conversation(owner, {}, [], 5)
    first = await answer(conversations, owner, "a", conversation=made.id)
    await answer(conversations, owner, "b", conversation=made.id)
    await conversations.drop_item(owner, made.id, "msg_b")
    assert texts(await conversations.items(owner, made.id)) == ["a", "re: a", "re: b"]
    with pytest.raises(NotFoundError):
        await conversations.drop_item(owner, made.id, "msg_b")
    await conversations.delete(owner, first)
    assert texts(await conversations.items(owner, made.id)) == ["re: b"]
    for gone in (conversations.find(owner, first), begin(conversations, owner, "c", parent=first)):
        with pytest.raises(NotFoundError):
            await gone
    await conversations.delete_conversation(owner, made.id)
    with pytest.raises(NotFoundError):
        await conversations.items(owner, made.id)
    assert await conversations.export(owner.tenant) == []


async def test_what_others_have_is_not_there(make: Maker, owner: Owner) -> None:
    conversations = make()
    made = await conversations.create_conversation(owner, {}, [], 5)
    response = await answer(conversations, owner, "a", conversation=made.id)
    for stranger in (Owner(f"{owner.tenant}-2", "ada"), Owner(owner.tenant, "bob")):
        for asked in (
            conversations.find(stranger, response),
            conversations.delete(stranger, response),
            conversations.conversation(stranger, made.id),
            conversations.set_metadata(stranger, made.id, {}),
            conversations.add_items(stranger, made.id, [said("b")], 6),
            conversations.items(stranger, made.id),
            conversations.drop_item(stranger, made.id, "msg_a"),
            conversations.delete_conversation(stranger, made.id),
            begin(conversations, stranger, "b", parent=response),
            begin(conversations, stranger, "b", conversation=made.id),
        ):
            with pytest.raises(NotFoundError):
                await asked
    assert texts(await conversations.items(Owner(owner.tenant), made.id)) == ["a", "re: a"]  # the tenant itself


@pytest.mark.parametrize("name", ["", "resp_", "x" * 9999, "conv_ж", f"resp_{'0' * 48}"])
async def test_an_id_that_is_none_is_not_there(make: Maker, owner: Owner, name: str) -> None:
    with pytest.raises(NotFoundError):
        await make().find(owner, name)


async def test_export_has_all_of_a_user_and_erasure_leaves_nothing(make: Maker, owner: Owner) -> None:
    conversations = make()
    await answer(conversations, owner, "mine")
    made = await conversations.create_conversation(owner, {"k": "v"}, [said("also mine")], 5)
    await answer(conversations, Owner(owner.tenant, "bob"), "bob's")
    kept = await conversations.export(owner.tenant, "ada")
    said_by_ada = sorted(item["content"] for tree in kept for turn in tree["turns"] for item in turn["items"])
    assert said_by_ada == ["also mine", "mine", "re: mine"]
    assert [c["id"] for tree in kept for c in tree["conversations"]] == [made.id]
    assert {tree["user"] for tree in kept} == {"ada"}
    assert len(await conversations.export(owner.tenant)) == 3
    assert await conversations.erase(owner.tenant, "ada", dry_run=True) == {"conversations": 2}
    assert len(await conversations.export(owner.tenant)) == 3
    assert await conversations.erase(owner.tenant, "ada") == {"conversations": 2}
    assert await conversations.export(owner.tenant, "ada") == []
    assert await conversations.erase(owner.tenant) == {"conversations": 1}
    assert await conversations.export(owner.tenant) == []


async def test_what_nobody_uses_goes_after_its_time(make: Maker, owner: Owner) -> None:
    keeps, forgets = make(), make(retain_seconds=0.0)
    kept = await keeps.create_conversation(owner, {}, [], 5)
    await keeps.store.trim()
    assert (await keeps.conversation(owner, kept.id)).id == kept.id
    gone = await forgets.create_conversation(owner, {}, [], 5)
    await forgets.store.trim()
    with pytest.raises(NotFoundError):
        await forgets.conversation(owner, gone.id)


async def test_a_turn_of_a_dead_process_is_claimed_once_and_its_late_writes_are_refused(
    make: Maker, owner: Owner
) -> None:
    dead, first, second = make(lease_seconds=0.0), make(), make()
    made = await dead.create_conversation(owner, {}, [], 5)
    begun = await begin(dead, owner, "a", conversation=made.id)
    await dead.put_output(begun.turn.id, 0, said("half"))
    ended = await begin(dead, owner, "b")
    await dead.end(ended.turn.id, {}, joins=True)
    (claimed,) = [stored for stored in await first.claim() if stored.turn.id == begun.turn.id]
    assert texts(claimed.outputs) == ["half"]
    assert begun.turn.id not in [stored.turn.id for stored in await second.claim()]
    for late in (
        dead.put_output(begun.turn.id, 1, said("late")),
        dead.put_facts(begun.turn.id, {}),
        dead.end(begun.turn.id, {}, joins=True),
    ):
        with pytest.raises(NotHeldError):
            await late
    await first.end(begun.turn.id, {"status": "failed"}, joins=True)
    assert texts(await second.items(owner, made.id)) == ["a", "half"]
    assert (await second.conversation(owner, made.id)).busy is None


async def test_a_living_process_keeps_its_turns(make: Maker, owner: Owner) -> None:
    living, other = make(), make()
    begun = await begin(living, owner, "a")
    await living.renew()
    assert begun.turn.id not in [stored.turn.id for stored in await other.claim()]
    await living.end(begun.turn.id, {}, joins=True)


async def test_whoever_makes_a_turn_hears_that_it_is_to_end(make: Maker, owner: Owner) -> None:
    making, other = make(), make()
    begun = await begin(making, owner, "a")
    assert await making.unwanted() == []
    await other.ask_end(owner, begun.turn.id)
    assert (await making.unwanted(), await other.unwanted()) == ([begun.turn.id], [])
    await making.end(begun.turn.id, {}, joins=True)
    await other.ask_end(owner, begun.turn.id)
    assert (await other.find(owner, begun.turn.id)).turn.ended
    with pytest.raises(NotFoundError):
        await other.ask_end(Owner("nobody"), begun.turn.id)


async def test_a_process_that_died_before_it_wrote_leaves_nothing_to_claim(make: Maker) -> None:
    conversations = make()
    name = new_id(RESPONSE, new_tree())
    await conversations.store.lease([name], 0.0)
    assert name not in [stored.turn.id for stored in await conversations.claim()]
    assert name not in await conversations.store.expired(0.0)


async def test_a_turn_whose_tree_is_erased_meanwhile_stops(make: Maker, owner: Owner) -> None:
    conversations = make()
    begun = await begin(conversations, owner, "a")
    await conversations.erase(owner.tenant)
    with pytest.raises(NotHeldError):
        await conversations.put_output(begun.turn.id, 0, said("b"))


async def test_a_turn_that_is_erased_while_it_is_claimed_is_let_go(
    make: Maker, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    await begin(make(lease_seconds=0), owner, "a")
    conversations = make()
    change = conversations.store.change

    async def erased_after(*asked: Any) -> Any:
        changed = await change(*asked)
        await conversations.erase(owner.tenant)
        return changed

    monkeypatch.setattr(conversations.store, "change", erased_after)
    assert owner.tenant not in [stored.turn.id for stored in await conversations.claim()]
    await conversations.renew()


def within(owner: Owner, **bounds: int) -> Owner:
    return Owner(owner.tenant, owner.user, Quota(**bounds))


async def refusal(asked: Any) -> tuple[str | None, str, str]:
    with pytest.raises(QuotaError) as refused:
        await asked
    return refused.value.code, refused.value.metadata["x-quota-limit"], refused.value.metadata["x-quota-used"]


async def test_a_tenant_has_no_more_conversations_than_it_may_and_another_is_not_held_up(
    make: Maker, owner: Owner
) -> None:
    conversations, two = make(), within(owner, trees=2)
    first = await conversations.create_conversation(two, {}, [], 5)
    last = await answer(conversations, two, "a")
    assert await refusal(make().create_conversation(two, {}, [], 6)) == ("conversations", "2", "2")
    assert await refusal(begin(make(), Owner(owner.tenant, "bob", two.quota), "b")) == ("conversations", "2", "2")
    await answer(conversations, two, "what there is goes on", parent=last)
    await conversations.create_conversation(Owner(f"{owner.tenant}-2", "", two.quota), {}, [], 5)
    await conversations.delete_conversation(owner, first.id)
    await conversations.create_conversation(two, {}, [], 7)
    assert (await make().store.held(owner.tenant)).trees == 2


async def test_a_conversation_has_no_more_items_than_it_may(make: Maker, owner: Owner) -> None:
    conversations, three = make(), within(owner, items=3)
    made = await conversations.create_conversation(three, {}, [said("a"), said("b")], 5)
    await conversations.add_items(three, made.id, [said("c")], 6)
    refused = ("conversation_items", "3", "3")
    assert await refusal(conversations.add_items(three, made.id, [said("d")], 6)) == refused
    assert await refusal(begin(conversations, three, "d", conversation=made.id)) == refused
    await conversations.drop_item(owner, made.id, "msg_b")
    begun = await begin(conversations, three, "d", conversation=made.id)
    assert await refusal(conversations.put_output(begun.turn.id, 0, said("re: d"))) == refused
    await conversations.put_output(begun.turn.id, 0, said("re: d"), last=True)  # what is there is whole
    await conversations.end(begun.turn.id, {}, joins=True)
    assert texts(await conversations.items(owner, made.id)) == ["a", "c", "d", "re: d"]


async def test_a_tenants_bytes_are_bounded_counted_and_given_back(make: Maker, owner: Owner) -> None:
    conversations, small = make(), within(owner, bytes=4000)
    made = await conversations.create_conversation(small, {"k": "v"}, [said("x" * 1000)], 5)
    held = (await conversations.store.held(owner.tenant)).bytes
    assert 2000 < held < 4000
    code, limit, used = await refusal(conversations.create_conversation(small, {}, [said("y" * 1000)], 6))
    assert (code, limit, used) == ("conversation_bytes", "4000", str(held))
    assert await refusal(conversations.set_metadata(small, made.id, {"k": "v" * 3000})) == (code, limit, used)
    assert (await conversations.conversation(owner, made.id)).metadata == {"k": "v"}
    await conversations.set_metadata(small, made.id, {})
    await conversations.set_metadata(small, made.id, {"k": "v"})
    assert (await make().store.held(owner.tenant)).bytes == held
    await conversations.drop_item(owner, made.id, f"msg_{'x' * 1000}")
    assert (await conversations.store.held(owner.tenant)).bytes < 2000
    await conversations.erase(owner.tenant)
    assert await conversations.store.held(owner.tenant) == Size()


async def test_what_has_gone_after_its_time_is_not_counted(make: Maker, owner: Owner) -> None:
    keeps, forgets, one = make(), make(retain_seconds=0.0), within(owner, trees=1)
    await forgets.create_conversation(one, {}, [], 5)
    await forgets.store.trim()
    await keeps.create_conversation(one, {}, [], 5)
    assert (await refusal(keeps.create_conversation(one, {}, [], 5)))[0] == "conversations"


async def test_of_several_processes_the_last_that_fits_is_the_last(make: Maker, owner: Owner) -> None:
    five = within(owner, trees=5)
    asked = [make().create_conversation(five, {}, [said("a")], 5) for _ in range(12)]
    made = await asyncio.gather(*asked, return_exceptions=True)
    assert sum(not isinstance(one, QuotaError) for one in made) == 5
    assert (await make().store.held(owner.tenant)).trees == 5


async def test_what_was_written_before_sizes_were_kept_is_counted(tmp_path: Path, owner: Owner) -> None:
    old = Conversations(SqliteConversationStore(tmp_path / "old.sqlite"))
    await old.create_conversation(owner, {}, [said("a")], 5)
    held = await old.store.held(owner.tenant)
    await old.store.close()
    with closing(sqlite3.connect(tmp_path / "old.sqlite")) as db:
        db.executescript("DROP TABLE sizes; DROP TABLE held")
    new = Conversations(SqliteConversationStore(tmp_path / "old.sqlite"))
    assert await new.store.held(owner.tenant) == held
    await new.store.close()


async def test_a_full_disk_is_what_the_log_says_and_the_client_reads_no_words_of_sqlite(
    tmp_path: Path, owner: Owner, caplog: pytest.LogCaptureFixture
) -> None:
    store = SqliteConversationStore(tmp_path / "full.sqlite")
    store._db.execute("PRAGMA max_page_count = 1")
    with pytest.raises(ConversationStoreError, match=r"^the store of conversations cannot be used now$"):
        await Conversations(store).create_conversation(owner, {}, [said("plum " * 100_000)], 5)
    assert [vars(record)["fields"] for record in caplog.records] == [{"why": "SQLITE_FULL"}]
    await store.close()


@pytest.mark.parametrize("kind", ["postgres", "redis"])
async def test_a_store_that_is_away_says_so(kind: str, tmp_path: Path, owner: Owner) -> None:
    store: ConversationStore
    if kind == "postgres":
        store = PostgresConversationStore(f"postgresql://postgres@/postgres?host={tmp_path}")
    else:
        store = RedisConversationStore(f"unix://{tmp_path}/none.sock")
    with pytest.raises(ConversationStoreError):
        await Conversations(store).create_conversation(owner, {}, [], 5)
    await store.close()
