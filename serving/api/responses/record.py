"""Where a response is written down as it goes: in a store, or, where the client wants nothing kept, nowhere."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from serving.api.responses.call_items import unanswered
from serving.errors import ConflictError, ConversationStoreError, NotFoundError
from serving.observability.logs import log_failure
from serving.sessions.conversations.conversations import Conversations, NotHeldError
from serving.sessions.conversations.records import Item, Owner, StoredTurn

LOST = "the server was stopped while it made this response, or could not write its end"
_UNKNOWN = "nobody knows whether the tool has done its work"

logger = logging.getLogger(__name__)

Facts = Mapping[str, Any]


class Record(Protocol):
    async def begin(self, facts: Facts, inputs: Sequence[Item]) -> Sequence[Item]:
        """What came before, oldest first. Raises what Conversations.begin raises."""
        ...

    async def put(self, position: int, item: Item, *, last: bool = False) -> None:
        """Raises ConflictError where others have ended or erased the response, ConversationStoreError, and QuotaError
        unless it is what a response ends with (`last`)."""
        ...

    async def change(self, facts: Facts) -> None:
        """Raises as `put`."""
        ...

    async def end(self, facts: Facts, *, joins: bool) -> None:
        """Raises as `put`."""
        ...

    async def forget(self) -> None: ...

    def abandon(self, end: Facts) -> None:
        """It cannot be ended here. `end` is how it would have been."""
        ...


class StoredRecord:
    def __init__(
        self,
        conversations: Conversations,
        owner: Owner,
        response_id: str,
        *,
        parent: str | None,
        conversation: str | None,
        created_at: int,
    ) -> None:
        self._conversations = conversations
        self._owner = owner
        self._id = response_id
        self._parent = parent
        self._conversation = conversation
        self._created_at = created_at

    async def begin(self, facts: Facts, inputs: Sequence[Item]) -> Sequence[Item]:
        with _as_asked_for(self._parent):
            begun = await self._conversations.begin(
                self._owner,
                self._id,
                facts=facts,
                inputs=inputs,
                created_at=self._created_at,
                parent=self._parent,
                conversation=self._conversation,
            )
        return begun.history

    async def put(self, position: int, item: Item, *, last: bool = False) -> None:
        try:
            await self._conversations.put_output(self._id, position, item, last=last)
        except NotHeldError:
            raise self._taken() from None

    async def change(self, facts: Facts) -> None:
        try:
            await self._conversations.put_facts(self._id, facts)
        except NotHeldError:
            raise self._taken() from None

    async def end(self, facts: Facts, *, joins: bool) -> None:
        try:
            await self._conversations.end(self._id, facts, joins=joins)
        except NotHeldError:
            raise self._taken() from None

    async def forget(self) -> None:
        try:
            await self._conversations.forget(self._id)
        except NotHeldError:
            return
        except ConversationStoreError as error:  # its lease will be over, and then somebody ends it
            log_failure(logger, "a response could not be taken back", error)
            self._conversations.abandon(self._id)
        except BaseException:  # cancelled meanwhile
            self._conversations.abandon(self._id)
            raise

    def abandon(self, end: Facts) -> None:
        self._conversations.abandon(self._id, end)

    def _taken(self) -> ConflictError:
        return ConflictError(f"{self._id} was ended or erased by others", code="response_taken")


class Unrecorded:
    """Reads what came before, and writes nothing."""

    def __init__(self, conversations: Conversations, owner: Owner, *, parent: str | None) -> None:
        self._conversations = conversations
        self._owner = owner
        self._parent = parent

    async def begin(self, facts: Facts, inputs: Sequence[Item]) -> Sequence[Item]:
        if self._parent is None:
            return []
        with _as_asked_for(self._parent):
            return await self._conversations.history(self._owner, self._parent)

    async def put(self, position: int, item: Item, *, last: bool = False) -> None:
        pass

    async def change(self, facts: Facts) -> None:
        pass

    async def end(self, facts: Facts, *, joins: bool) -> None:
        pass

    async def forget(self) -> None:
        pass

    def abandon(self, end: Facts) -> None:
        pass


@contextmanager
def _as_asked_for(parent: str | None) -> Iterator[None]:
    """What is not there, by the parameter that named it; whatever its name looks like, a parent is a response."""
    try:
        yield
    except NotFoundError as error:
        if error.param is not None:
            raise
        if parent is None:
            raise NotFoundError(error.message, param="conversation", code=error.code) from None
        raise NotFoundError(
            f"there is no response {parent[:100]!r} here", param="previous_response_id", code="response_not_found"
        ) from None


async def close_lost(conversations: Conversations, stored: StoredTurn) -> None:
    """Ends a response whose process is gone, or could not write its end: with what it had written, and no call without
    its result. No tool is run again. Where this process was to end it, with what its client was told. Raises
    NotHeldError and ConversationStoreError."""
    end = conversations.unwritten_end(stored.turn.id)
    why = LOST if end is None else "the end of this response could not be written"
    for position, item in enumerate(stored.outputs):
        broken = unanswered(item, f"{why}; {_UNKNOWN}")
        if broken is not item:
            await conversations.put_output(stored.turn.id, position, broken)
    if end is None:
        end = {"status": "failed", "error": {"code": "server_error", "message": LOST}}
    await conversations.end(stored.turn.id, {**stored.facts, **end}, joins=bool(stored.outputs))
