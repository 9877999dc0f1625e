"""What a store keeps, beside items: these are JSON objects, as the API shows them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from serving.sessions.conversations.quota import UNBOUNDED, Quota

Item = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Owner:
    """Of a whole tree. Where a request names no user, it speaks for its tenant."""

    tenant: str
    user: str = ""
    quota: Quota = field(default=UNBOUNDED, compare=False)  # of the tenant, where this is who asks

    def admits(self, asking: "Owner") -> bool:
        return asking.tenant == self.tenant and asking.user in ("", self.user)


class Turn(msgspec.Struct, kw_only=True, frozen=True):
    """A response, or items that a client has put into a conversation."""

    id: str
    parent: str | None = None
    conversation: str | None = None
    created_at: int = 0  # seconds since 1970
    inputs: int = 0  # items
    outputs: int = 0
    holder: str | None = None  # the process that makes it; None: it has ended
    unwanted: bool = False  # whoever holds it is to end it
    deleted: bool = False  # its items are gone, and its children stay

    @property
    def ended(self) -> bool:
        return self.holder is None


class Conversation(msgspec.Struct, kw_only=True, frozen=True):
    id: str
    created_at: int
    metadata: dict[str, str] = {}
    head: str | None = None  # the turn that was last
    busy: str | None = None  # the turn that is being made


@dataclass(frozen=True, slots=True)
class StoredTurn:
    turn: Turn
    facts: Mapping[str, Any]  # what its protocol keeps of it, beside the items
    inputs: Sequence[Item]
    outputs: Sequence[Item]


@dataclass(frozen=True, slots=True)
class Begun:
    turn: Turn
    history: Sequence[Item]  # of all turns before it, oldest first
