"""Trees of turns over any store: who may see them, how they grow, what is left of a turn whose process was killed.

A turn is held by the process that makes it, under a lease. It is written as it goes: begun, each item as it becomes
complete, ended. Only the holder adds to it, so one that was taken for dead and was not cannot write any more.
"""

import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from serving.errors import ConflictError, NotFoundError
from serving.sessions.conversations.ids import CONVERSATION, TURN, new_id, new_tree, tree_of
from serving.sessions.conversations.quota import UNBOUNDED, Quota
from serving.sessions.conversations.records import Begun, Conversation, Item, Owner, StoredTurn, Turn
from serving.sessions.conversations.store import ConversationStore, Edit, Key, NoTreeError, Rows
from serving.sessions.conversations.tree_rows import (
    conversation_in,
    encode,
    item_keys,
    item_place,
    item_places,
    item_rows,
    missing,
    path,
    turn_in,
)

LEASE_SECONDS = 15.0  # a process that is not heard of for so long is taken for dead
MOST_UNWRITTEN = 1024  # ends of turns that are kept in mind

Facts = Mapping[str, Any]


class NotHeldError(Exception):
    """The turn was ended by others, or is gone: whoever makes it must stop."""


class Conversations:
    def __init__(
        self, store: ConversationStore, *, quota: Quota = UNBOUNDED, lease_seconds: float = LEASE_SECONDS
    ) -> None:
        """`quota` is of a tenant that has none of its own."""
        self.store = store
        self.quota = quota
        self.lease_seconds = lease_seconds
        self._holder = secrets.token_hex(8)
        self._held: dict[str, Quota] = {}  # turns, and how much may be kept of them
        self._unwritten: OrderedDict[str, Facts] = OrderedDict()  # ends of turns that were abandoned here; newest last

    # Turns

    async def begin(
        self,
        owner: Owner,
        turn_id: str,
        *,
        facts: Facts,
        inputs: Sequence[Item],
        created_at: int,
        parent: str | None = None,
        conversation: str | None = None,
    ) -> Begun:
        """A new turn after `parent`, or at the end of `conversation`, or with neither: the first of a tree. Its id is
        of the same tree.

        Raises NotFoundError for a parent or conversation that this owner does not have, ConflictError while the parent
        or another turn of the conversation is being made, QuotaError where the owner has no room for it.
        """
        earlier = parent or conversation
        tree = tree_of(turn_id) if earlier is None else await self._tree(owner, earlier)
        assert tree is not None
        assert tree == tree_of(turn_id)
        self._held[turn_id] = owner.quota
        turn = Turn(
            id=turn_id,
            parent=parent,
            conversation=conversation,
            created_at=created_at,
            inputs=len(inputs),
            holder=self._holder,
        )
        try:
            await self.store.lease([turn_id], self.lease_seconds)  # first: whatever happens, somebody looks after it
            turn = await self._write_begun(tree, owner, turn, facts, inputs, is_first=earlier is None)
            return Begun(turn, await self._items_before(tree, turn))
        except BaseException:
            self.abandon(turn_id)
            raise

    def abandon(self, turn_id: str, end: Facts | None = None) -> None:
        """Leaves a turn that cannot be ended here, to whoever looks after it once its lease is over: where that is this
        process, it knows `end`, which could not be written."""
        self._held.pop(turn_id, None)
        if end is not None:
            self._unwritten[turn_id] = end
            while len(self._unwritten) > MOST_UNWRITTEN:
                self._unwritten.popitem(last=False)

    def unwritten_end(self, turn_id: str) -> Facts | None:
        """Of a turn that was abandoned here, until it is ended; None where nobody here knows."""
        return self._unwritten.get(turn_id)

    async def forget(self, turn_id: str) -> None:
        """A turn that came to nothing: as if it had not been begun. Raises NotHeldError."""
        turn = await self._held_turn(turn_id)
        keys: list[Key] = [("turn", turn_id)]
        if turn.conversation is not None:
            keys.append(("conversation", turn.conversation))

        def work(found: Rows) -> Edit:
            turn = self._own(found, turn_id)
            put = self._freed(found, turn, joins=False)
            return Edit(put, [("turn", turn_id), ("facts", turn_id), *item_keys(turn)])

        tree = tree_of(turn_id) or ""
        if turn.parent is None and turn.conversation is None:
            await self.store.drop(tree)
        else:
            await self._change_own(turn_id, keys, work)
        await self._let_go(turn_id)

    async def history(self, owner: Owner, turn_id: str) -> list[Item]:
        """Of the turn and all before it, oldest first. Raises NotFoundError, and ConflictError while it is made."""
        stored = await self.find(owner, turn_id)
        if not stored.turn.ended:
            raise _in_progress(turn_id)
        return [item for _, item in await self._path_items(tree_of(turn_id) or "", turn_id)]

    async def _write_begun(
        self, tree: str, owner: Owner, turn: Turn, facts: Facts, inputs: Sequence[Item], *, is_first: bool
    ) -> Turn:
        rows = {("facts", turn.id): encode(facts), **item_rows(turn.id, "i", inputs)}
        if is_first:
            await self.store.create(tree, owner, {("turn", turn.id): encode(turn), **rows}, owner.quota)
            return turn
        keys = [("turn", turn.parent)] if turn.parent else [("conversation", turn.conversation or "")]

        def work(found: Rows) -> Edit:
            if turn.parent is not None:
                parent = turn_in(found, turn.parent)
                if parent.deleted:
                    raise missing(turn.parent)
                if not parent.ended:
                    raise _in_progress(turn.parent)
                return Edit({("turn", turn.id): encode(turn), **rows}, outcome=turn)
            conversation = conversation_in(found, turn.conversation or "")
            if conversation.busy is not None:
                raise ConflictError(
                    f"another response is being made in {conversation.id}; wait for its end, or cancel it",
                    param="conversation",
                    code="conversation_locked",
                )
            placed = msgspec.structs.replace(turn, parent=conversation.head)
            busy = msgspec.structs.replace(conversation, busy=turn.id)
            put = {("turn", turn.id): encode(placed), ("conversation", conversation.id): encode(busy), **rows}
            return Edit(put, outcome=placed)

        return await self._change(tree, turn.parent or turn.conversation or "", keys, work, owner.quota)

    async def put_output(self, turn_id: str, position: int, item: Item, *, last: bool = False) -> None:
        """The item at this position of the output, new or in place of what stood there. What a turn ends with (`last`)
        is kept in any case, so that what is there is whole. Raises NotHeldError and QuotaError."""

        def work(found: Rows) -> Edit:
            turn = self._own(found, turn_id)
            put = {("item", item_place(turn_id, "o", position)): encode(item)}
            if position >= turn.outputs:
                put["turn", turn_id] = encode(msgspec.structs.replace(turn, outputs=position + 1))
            return Edit(put)

        quota = UNBOUNDED if last else self._held.get(turn_id, UNBOUNDED)
        await self._change_own(turn_id, [("turn", turn_id)], work, quota)

    async def put_facts(self, turn_id: str, facts: Facts) -> None:
        """Raises NotHeldError."""

        def work(found: Rows) -> Edit:
            self._own(found, turn_id)
            return Edit({("facts", turn_id): encode(facts)})

        await self._change_own(turn_id, [("turn", turn_id)], work)

    async def end(self, turn_id: str, facts: Facts, *, joins: bool) -> None:
        """Its conversation goes on after this turn where it `joins`, else as if it had not been. Raises
        NotHeldError."""
        turn = await self._held_turn(turn_id)
        keys: list[Key] = [("turn", turn_id)]
        if turn.conversation is not None:
            keys.append(("conversation", turn.conversation))

        def work(found: Rows) -> Edit:
            turn = self._own(found, turn_id)
            ended = encode(msgspec.structs.replace(turn, holder=None))
            put = {("turn", turn_id): ended, ("facts", turn_id): encode(facts)}
            return Edit({**put, **self._freed(found, turn, joins=joins)})

        await self._change_own(turn_id, keys, work)
        await self._let_go(turn_id)

    async def ask_end(self, owner: Owner, turn_id: str) -> None:
        """Asks the process that makes it, whichever it is; it hears of it when it next says that it lives. Raises
        NotFoundError."""

        def work(found: Rows) -> Edit:
            turn = turn_in(found, turn_id)
            unwanted = msgspec.structs.replace(turn, unwanted=True)
            return Edit() if turn.ended else Edit({("turn", turn_id): encode(unwanted)})

        await self._change(await self._tree(owner, turn_id), turn_id, [("turn", turn_id)], work)

    async def find(self, owner: Owner, turn_id: str) -> StoredTurn:
        """Raises NotFoundError."""
        tree = await self._tree(owner, turn_id)
        return await self._stored(tree, turn_id)

    async def delete(self, owner: Owner, turn_id: str) -> None:
        """Its items go; turns after it stay. One that is being made is to be cancelled first. Raises NotFoundError and
        ConflictError."""
        stored = await self.find(owner, turn_id)
        if not stored.turn.ended:
            raise ConflictError(f"{turn_id} is still being made; cancel it first", code="response_in_progress")

        def work(found: Rows) -> Edit:
            turn = turn_in(found, turn_id)
            emptied = msgspec.structs.replace(turn, deleted=True, inputs=0, outputs=0)
            return Edit({("turn", turn_id): encode(emptied)}, [("facts", turn_id), *item_keys(turn)])

        await self._change(tree_of(turn_id) or "", turn_id, [("turn", turn_id)], work)

    # Conversations

    async def create_conversation(
        self,
        owner: Owner,
        metadata: Mapping[str, str],
        items: Sequence[Item],
        created_at: int,
        tree: str | None = None,
    ) -> Conversation:
        """`tree` is a new one, which the items' ids have. Raises QuotaError."""
        tree = tree or new_tree()
        name = new_id(CONVERSATION, tree)
        rows: dict[Key, bytes] = {}
        head = None
        if items:
            turn = Turn(id=new_id(TURN, tree), conversation=name, created_at=created_at, inputs=len(items))
            head = turn.id
            rows = {("turn", head): encode(turn), **item_rows(head, "i", items)}
        made = Conversation(id=name, created_at=created_at, metadata=dict(metadata), head=head)
        await self.store.create(tree, owner, {("conversation", name): encode(made), **rows}, owner.quota)
        return made

    async def conversation(self, owner: Owner, name: str) -> Conversation:
        """Raises NotFoundError."""
        tree = await self._tree(owner, name)
        rows = await self.store.read(tree, "conversation", [name])
        return conversation_in({("conversation", found): row for found, row in rows.items()}, name)

    async def set_metadata(self, owner: Owner, name: str, metadata: Mapping[str, str]) -> Conversation:
        """Raises NotFoundError and QuotaError."""

        def work(found: Rows) -> Edit:
            changed = msgspec.structs.replace(conversation_in(found, name), metadata=dict(metadata))
            return Edit({("conversation", name): encode(changed)}, outcome=changed)

        return await self._change(await self._tree(owner, name), name, [("conversation", name)], work, owner.quota)

    async def add_items(self, owner: Owner, name: str, items: Sequence[Item], created_at: int) -> None:
        """Raises NotFoundError, ConflictError while a response is being made in it, and QuotaError."""
        tree = await self._tree(owner, name)

        def work(found: Rows) -> Edit:
            conversation = conversation_in(found, name)
            if conversation.busy is not None:
                raise ConflictError(f"a response is being made in {name}", code="conversation_locked")
            turn = Turn(
                id=new_id(TURN, tree),
                parent=conversation.head,
                conversation=name,
                created_at=created_at,
                inputs=len(items),
            )
            moved = msgspec.structs.replace(conversation, head=turn.id)
            put = {("conversation", name): encode(moved), ("turn", turn.id): encode(turn)}
            return Edit({**put, **item_rows(turn.id, "i", items)})

        await self._change(tree, name, [("conversation", name)], work, owner.quota)

    async def items(self, owner: Owner, name: str) -> list[Item]:
        """All of a conversation's, oldest first. Raises NotFoundError."""
        return [item for _, item in await self._placed(owner, name)]

    async def drop_item(self, owner: Owner, name: str, item_id: str) -> None:
        """Raises NotFoundError."""
        places = [place for place, item in await self._placed(owner, name) if item["id"] == item_id]
        if not places:
            raise missing(item_id)
        keys = [("item", place) for place in places]
        await self._change(tree_of(name) or "", name, keys, lambda _: Edit(drop=keys))

    async def delete_conversation(self, owner: Owner, name: str) -> None:
        """With all that was said in it. Raises NotFoundError."""
        await self.conversation(owner, name)
        await self.store.drop(tree_of(name) or "")

    # A user's data

    async def export(self, tenant: str, user: str | None = None) -> list[dict[str, Any]]:
        """Everything that is kept of a user, or of the whole tenant, by tree."""
        found = []
        for tree in await self.store.trees(tenant, user):
            rows = {kind: await self.store.read(tree, kind) for kind in ("conversation", "turn", "facts", "item")}
            decoded = {kind: {name: msgspec.json.decode(row) for name, row in of.items()} for kind, of in rows.items()}
            turns = [
                {
                    **turn,
                    "facts": decoded["facts"].get(name, {}),
                    "items": [item for place, item in decoded["item"].items() if place.startswith(f"{name}:")],
                }
                for name, turn in decoded["turn"].items()
            ]
            owner = await self.store.owner(tree)
            if owner is not None:
                conversations = list(decoded["conversation"].values())
                found.append({"user": owner.user, "conversations": conversations, "turns": turns})
        return found

    async def erase(self, tenant: str, user: str | None = None, dry_run: bool = False) -> Mapping[str, int]:
        """What there is of a user, or of the whole tenant; unless it is only looked at, it is gone."""
        trees = await self.store.trees(tenant, user)
        for tree in () if dry_run else trees:
            await self.store.drop(tree)
        if not dry_run:
            await self.store.purge()
        return {"conversations": len(trees)}

    # Turns of processes that are gone

    async def renew(self) -> None:
        """Says that this process lives."""
        if self._held:
            await self.store.lease(sorted(self._held), self.lease_seconds)

    async def unwanted(self) -> list[str]:
        """The turns held here that somebody has asked to end."""
        found = []
        for name in sorted(self._held):
            rows = await self.store.read(tree_of(name) or "", "turn", [name])
            if any(msgspec.json.decode(row, type=Turn).unwanted for row in rows.values()):
                found.append(name)
        return found

    async def claim(self) -> list[StoredTurn]:
        """The unfinished turns whose process is gone. From now on they are held here."""
        claimed = []
        for name in await self.store.expired(self.lease_seconds):
            if name in self._held:  # it was not gone: it was late
                continue

            def work(found: Rows, name: str = name) -> Edit:
                turn = turn_in(found, name)
                if turn.ended:
                    return Edit()
                taken = msgspec.structs.replace(turn, holder=self._holder)
                return Edit({("turn", name): encode(taken)}, outcome=taken)

            tree = tree_of(name) or ""
            try:
                taken = await self.store.change(tree, [("turn", name)], work)
            except (NoTreeError, NotFoundError):
                taken = None
            if taken is None:  # its process came as far as the end, or not as far as the beginning
                await self.store.release([name])
                continue
            self._held[name] = UNBOUNDED  # it is only ended
            try:
                claimed.append(await self._stored(tree, name))
            except NotFoundError:  # it was erased meanwhile
                await self._let_go(name)
        return claimed

    # Inside

    def _own(self, found: Rows, turn_id: str) -> Turn:
        raw = found.get(("turn", turn_id))
        turn = None if raw is None else msgspec.json.decode(raw, type=Turn)
        if turn is None or turn.holder != self._holder:
            self._held.pop(turn_id, None)
            raise NotHeldError(turn_id)
        return turn

    def _freed(self, found: Rows, turn: Turn, *, joins: bool) -> dict[Key, bytes]:
        """The row of a turn's conversation, where it has one and that still waits for it."""
        raw = found.get(("conversation", turn.conversation or ""))
        conversation = None if raw is None else msgspec.json.decode(raw, type=Conversation)
        if conversation is None or conversation.busy != turn.id:
            return {}
        head = turn.id if joins else conversation.head
        freed = msgspec.structs.replace(conversation, busy=None, head=head)
        return {("conversation", conversation.id): encode(freed)}

    async def _held_turn(self, turn_id: str) -> Turn:
        rows = await self.store.read(tree_of(turn_id) or "", "turn", [turn_id])
        return self._own({("turn", name): row for name, row in rows.items()}, turn_id)

    async def _change_own(
        self, turn_id: str, keys: Sequence[Key], work: Callable[[Rows], Edit], quota: Quota = UNBOUNDED
    ) -> None:
        try:
            await self.store.change(tree_of(turn_id) or "", keys, work, quota)
        except NoTreeError:
            await self._let_go(turn_id)
            raise NotHeldError(turn_id) from None

    async def _let_go(self, turn_id: str) -> None:
        self._held.pop(turn_id, None)
        self._unwritten.pop(turn_id, None)
        await self.store.release([turn_id])

    async def _change(
        self, tree: str, name: str, keys: Sequence[Key], work: Callable[[Rows], Edit], quota: Quota = UNBOUNDED
    ) -> Any:
        try:
            return await self.store.change(tree, keys, work, quota)
        except NoTreeError:
            raise missing(name) from None

    async def _tree(self, owner: Owner, name: str) -> str:
        """Raises NotFoundError: of what others have, nobody learns that it is there."""
        tree = tree_of(name)
        found = None if tree is None else await self.store.owner(tree)
        if tree is None or found is None or found.tenant != owner.tenant:
            raise missing(name)
        if not found.admits(owner):
            raise _not_of(name, owner, found)
        return tree

    async def _stored(self, tree: str, turn_id: str) -> StoredTurn:
        rows = await self.store.read(tree, "turn", [turn_id])
        turn = turn_in({("turn", name): row for name, row in rows.items()}, turn_id)
        if turn.deleted:
            raise missing(turn_id)
        facts = await self.store.read(tree, "facts", [turn_id])
        items = await self.store.read(tree, "item", [name for _, name in item_keys(turn)])
        sides = {side: [items[place] for place in item_places(turn, side) if place in items] for side in "io"}
        inputs, outputs = ([msgspec.json.decode(row) for row in sides[side]] for side in "io")
        return StoredTurn(turn, msgspec.json.decode(facts.get(turn_id, b"{}")), inputs, outputs)

    async def _items_before(self, tree: str, turn: Turn) -> list[Item]:
        return [item for _, item in await self._path_items(tree, turn.parent)]

    async def _placed(self, owner: Owner, name: str) -> list[tuple[str, Item]]:
        conversation = await self.conversation(owner, name)
        return await self._path_items(tree_of(name) or "", conversation.head)

    async def _path_items(self, tree: str, last: str | None) -> list[tuple[str, Item]]:
        """(place, item) of a turn and all before it, oldest first."""
        if last is None:
            return []
        turns = {
            name: msgspec.json.decode(row, type=Turn) for name, row in (await self.store.read(tree, "turn")).items()
        }
        places = [
            place for turn in reversed(list(path(turns, last))) for side in "io" for place in item_places(turn, side)
        ]
        items = await self.store.read(tree, "item", places)
        return [(place, msgspec.json.decode(items[place])) for place in places if place in items]


def _not_of(name: str, asking: Owner, found: Owner) -> NotFoundError:
    """To users of one tenant it is no secret that nobody was named; whose it is otherwise, is."""
    if found.user:
        return missing(name)
    return NotFoundError(
        f"{name} was begun without a user, and this request names one: a conversation is a user's from its beginning, "
        "so that all of it can be handed out and erased; send the user when it is created, or leave the user out",
        param="user",
        code="user_not_of_conversation",
    )


def _in_progress(turn_id: str) -> ConflictError:
    return ConflictError(
        f"the response {turn_id} is still being made", param="previous_response_id", code="response_in_progress"
    )
