"""Looks after turns: says that this process lives, ends those that others ask it to, closes those of processes that are
gone, and drops what is too old."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from serving.errors import ConversationStoreError
from serving.observability.logs import log_event, log_failure
from serving.sessions.conversations.conversations import Conversations, NotHeldError
from serving.sessions.conversations.records import StoredTurn

TRIM_SECONDS = 600.0
_TICKS = 3  # in the time of a lease

logger = logging.getLogger(__name__)


class Keeper:
    def __init__(
        self,
        conversations: Conversations,
        close: Callable[[StoredTurn], Awaitable[None]],
        cancel: Callable[[str], Awaitable[None]],
    ) -> None:
        """`close` ends a turn that was claimed, `cancel` one that is made here."""
        self._conversations = conversations
        self._cancel = cancel
        self._close = close
        self._trimmed: float | None = None
        self._is_down = False

    async def run(self) -> None:
        """For ever."""
        while True:
            await self.tick()
            await asyncio.sleep(self._conversations.lease_seconds / _TICKS)

    async def tick(self) -> None:
        try:
            await self._conversations.renew()
            for name in await self._conversations.unwanted():
                await self._cancel(name)
            for stored in await self._conversations.claim():
                await self._close_one(stored)
            now = time.monotonic()
            if self._trimmed is None or now - self._trimmed >= TRIM_SECONDS:
                await self._conversations.store.trim()
                self._trimmed = now
            self._is_down = False
        except ConversationStoreError as error:
            if not self._is_down:
                log_failure(logger, "conversations cannot be looked after", error)
            self._is_down = True

    async def _close_one(self, stored: StoredTurn) -> None:
        log_event(logger, "a turn was left by its process", turn=stored.turn.id)
        try:
            await self._close(stored)
        except NotHeldError:  # it was erased meanwhile
            return
        except ConversationStoreError:
            self._conversations.abandon(stored.turn.id)
            raise
