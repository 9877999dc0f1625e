"""The interface of a store of conversations: one over SQLite, Postgres and Redis.

It knows trees, and rows in them: bytes, by kind and name. What rows mean is said in `conversations.py`, once.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from serving.sessions.conversations.quota import UNBOUNDED, Quota, Size
from serving.sessions.conversations.records import Owner

KINDS = ("conversation", "facts", "item", "turn")

Key = tuple[str, str]  # kind and name
Rows = Mapping[Key, bytes]


class NoTreeError(Exception):
    """The tree was never there, or is gone."""


@dataclass(frozen=True, slots=True)
class Edit:
    put: Mapping[Key, bytes] = field(default_factory=dict)
    drop: Sequence[Key] = ()
    outcome: Any = None  # for whoever asked for the change


class ConversationStore(Protocol):
    """Every method raises ConversationStoreError where the store cannot be reached."""

    async def create(self, tree: str, owner: Owner, rows: Rows, quota: Quota = UNBOUNDED) -> None:
        """Raises QuotaError where the owner's tenant has no room for it; then nothing is written."""
        ...

    async def owner(self, tree: str) -> Owner | None: ...

    async def read(self, tree: str, kind: str, names: Sequence[str] | None = None) -> dict[str, bytes]:
        """Rows of one kind by name: all, or those of the names that are there."""
        ...

    async def change(
        self, tree: str, keys: Sequence[Key], work: Callable[[Rows], Edit], quota: Quota = UNBOUNDED
    ) -> Any:
        """Gives the rows of the keys to `work`, and writes what it returns: all of it or nothing, and nobody else
        writes in this tree between the two. Returns the edit's outcome.

        `work` may be called more than once. What it raises comes through, and then nothing is written. Raises
        NoTreeError, and QuotaError where the edit makes the tenant's part larger than it may be.
        """
        ...

    async def drop(self, tree: str) -> None: ...

    async def held(self, tenant: str) -> Size:
        """Of all the tenant's trees; its `items` are not counted."""
        ...

    async def trees(self, tenant: str, user: str | None = None) -> list[str]:
        """Of a user, or of the whole tenant."""
        ...

    async def lease(self, names: Sequence[str], seconds: float) -> None:
        """From now, by the store's clock; a lease that is there is renewed."""
        ...

    async def release(self, names: Sequence[str]) -> None: ...

    async def expired(self, seconds: float) -> list[str]:
        """The names whose lease is over. Each is given to one caller, who has it for so many seconds."""
        ...

    async def trim(self) -> None:
        """Drops the trees that nobody has used for the time that they are retained."""
        ...

    async def purge(self) -> None:
        """What was dropped is gone from the disk too, as far as this process can see to it."""
        ...

    async def close(self) -> None: ...
