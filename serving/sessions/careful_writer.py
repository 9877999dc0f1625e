"""Writes generations to the log before anybody reads them, and lets them go on in memory where the log fails.

Each generation has a writer of its own. What comes while it writes is written together, next.
"""

import logging
from collections.abc import Callable

from serving.errors import StreamLogError
from serving.observability.logs import log_event, log_failure
from serving.sessions.generation_log import LOG_UNAVAILABLE, GenerationLog, NotHeldError
from serving.sessions.live_generation import LiveGeneration
from serving.sessions.logged_generation import encode_admitted

logger = logging.getLogger(__name__)


class CarefulWriter:
    """`refuse` new generations where the log fails; else they begin without it. `count` is told what happens, and
    `on_lost` of a generation that another process has taken."""

    def __init__(
        self,
        log: GenerationLog,
        *,
        refuse: bool,
        count: Callable[[str], None],
        on_lost: Callable[[LiveGeneration], None],
    ) -> None:
        self._log = log
        self._refuse = refuse
        self._count = count
        self._on_lost = on_lost
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

    async def write(self, live: LiveGeneration) -> None:
        """What is added to `live`, as it comes: written, then shown. Ends after the last record, or where another
        process has taken it. It is not to be cancelled: nobody must doubt what was written."""
        while True:
            await live.added.wait()
            live.added.clear()
            while live.backlog:
                async with live.writing:
                    batch, live.backlog = live.backlog, []
                    ended = live.complete
                    try:
                        await self._append(live, batch, ended)
                    except NotHeldError:
                        self._on_lost(live)
                        return
                    live.publish(batch, ended=ended)
                if ended:
                    return
            if live.parted:
                return

    async def mend(self, live: LiveGeneration) -> None:
        """Writes anew what the log misses. Raises StreamLogError."""
        async with live.writing:
            admitted = encode_admitted(live.admitted)
            try:
                await self._log.rewrite(live.stream_id, admitted, live.records, ended=live.ended)
            except NotHeldError:
                self._on_lost(live)
                return
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

    async def _append(self, live: LiveGeneration, batch: list[bytes], ended: bool) -> None:
        if live.undurable is not None:
            return
        try:
            await self._log.append(live.stream_id, len(live.records), batch, ended=ended)
        except StreamLogError as error:
            self._degrade(live, error)
        except NotHeldError:
            raise
        except Exception as error:  # readers must not wait for a write that will never be
            log_failure(logger, "the log of streams failed", error)
            self._degrade(live, StreamLogError("the log of streams failed", code=LOG_UNAVAILABLE))

    def _degrade(self, live: LiveGeneration, error: StreamLogError) -> None:
        live.undurable = error.code or LOG_UNAVAILABLE
        self._count("undurable")
        self.note_failure(error)
