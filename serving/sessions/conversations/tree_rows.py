"""How turns, conversations and items stand in the rows of a tree."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from serving.errors import NotFoundError
from serving.sessions.conversations.records import Conversation, Item, Turn
from serving.sessions.conversations.store import Key, Rows


def encode(value: Any) -> bytes:
    return msgspec.json.encode(value)


def path(turns: Mapping[str, Turn], last: str | None) -> Iterator[Turn]:
    while last is not None and last in turns:
        yield turns[last]
        last = turns[last].parent


def item_place(turn_id: str, side: str, number: int) -> str:
    """Sorts as the items stand."""
    return f"{turn_id}:{side}{number:06d}"


def item_places(turn: Turn, side: str) -> list[str]:
    return [item_place(turn.id, side, number) for number in range(turn.inputs if side == "i" else turn.outputs)]


def item_keys(turn: Turn) -> list[Key]:
    return [("item", place) for side in "io" for place in item_places(turn, side)]


def item_rows(turn_id: str, side: str, items: Sequence[Item]) -> dict[Key, bytes]:
    return {("item", item_place(turn_id, side, number)): encode(item) for number, item in enumerate(items)}


def turn_in(found: Rows, name: str) -> Turn:
    raw = found.get(("turn", name))
    if raw is None:
        raise missing(name)
    return msgspec.json.decode(raw, type=Turn)


def conversation_in(found: Rows, name: str) -> Conversation:
    raw = found.get(("conversation", name))
    if raw is None:
        raise missing(name)
    return msgspec.json.decode(raw, type=Conversation)


def missing(name: str) -> NotFoundError:
    kind = {"resp": "response", "conv": "conversation"}.get(name.partition("_")[0], "item")
    return NotFoundError(f"there is no {kind} {name[:100]!r} here", code=f"{kind}_not_found")
