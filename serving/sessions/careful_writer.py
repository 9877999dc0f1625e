"""Writes generations to the log before anybody reads them, and lets them go on in memory where the log fails."""

import asyncio
import logging
from collections.abc import Callable

from serving.errors import StreamLogError
from serving.observability.logs import log_event
from serving.sessions.generation_log import LOG_UNAVAILABLE, GenerationLog
from serving.sessions.live_generation import LiveGeneration
from serving.sessions.logged_generation import encode_admitted

logger = logging.getLogger(__name__)


class CarefulWriter:
    """`refuse` new generations where the log fails; else they begin without it. `count` is told what happens."""

    def __init__(self, log: GenerationLog, *, refuse: bool, count: Callable[[str], None]) -> None:
        self._log = log
        self._refuse = refuse
        self._count = count
        self._down = False

    async def create(self, live: LiveGeneration) -> None:
        """Raises StreamLogError where that is the policy."""
        try:
            await self._log.create(live.stream_id, encode_admitted(live.admitted))
        except StreamLogError as error:
            if self._refuse:
                self.note_failure(error)
                raise
            self._degrade(live, error)

    async def add(self, live: LiveGeneration, record: bytes, *, ended: bool = False) -> None:
        """Written, then shown; to the end, also where the caller is cancelled meanwhile, so that nobody must doubt
        what was written. Raises NotHeldError."""
        adding = asyncio.ensure_future(self._add(live, record, ended))
        try:
            await asyncio.shield(adding)
        except asyncio.CancelledError:
            await asyncio.gather(adding, return_exceptions=True)
            raise

    async def mend(self, live: LiveGeneration) -> None:
        """Writes anew what the log misses. Raises StreamLogError, NotHeldError."""
        async with live.writing:
            admitted = encode_admitted(live.admitted)
            await self._log.rewrite(live.stream_id, admitted, live.records, ended=live.ended)
            live.undurable = None
        self._count("mended")

    def note_failure(self, error: StreamLogError) -> None:
        if not self._down:
            log_event(logger, "the log of streams fails", level=logging.ERROR, code=error.code)
        self._down = True
        self._count("log_failed")

    def note_success(self) -> None:
        if self._down:
            log_event(logger, "the log of streams works again")
        self._down = False

    async def _add(self, live: LiveGeneration, record: bytes, ended: bool) -> None:
        async with live.writing:
            if live.undurable is None:
                try:
                    await self._log.append(live.stream_id, len(live.records), [record], ended=ended)
                except StreamLogError as error:
                    self._degrade(live, error)
            live.publish(record, ended=ended)

    def _degrade(self, live: LiveGeneration, error: StreamLogError) -> None:
        live.undurable = error.code or LOG_UNAVAILABLE
        self._count("undurable")
        self.note_failure(error)
