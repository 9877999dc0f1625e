"""Ships the outbox to a stream in Redis. One process of those that share the outbox does it.

Each event is shipped at least once, and is in the stream once: beside the stream Redis keeps the position up to which
it has taken this outbox, and both change in one script. What Redis loses of its own, because it was restarted or a
replica took over, is not shipped again.
"""

import asyncio
import hashlib
import logging
import sqlite3
from collections.abc import Sequence

from redis.exceptions import NoScriptError, RedisError

from serving.events.event_metrics import EventMetrics
from serving.events.outbox import Entry, Outbox
from serving.folder_worker import FolderWorker
from serving.observability.logs import log_event
from serving.redis_client import redis_client

ANSWER_SECONDS = 5.0  # to connect, and for an answer
MOST_AT_ONCE, MOST_BYTES_AT_ONCE = 500, 4 << 20  # the latter but for one that is larger by itself

# KEYS: stream, positions. ARGV: outbox, length, then position, id, type and event of each. Gives what is new to Redis.
_SHIP = """
local seen = tonumber(redis.call('HGET', KEYS[2], ARGV[1]) or '0')
local new = 0
for i = 3, #ARGV, 4 do
  local position = tonumber(ARGV[i])
  if position > seen then
    redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[2], '*',
      'id', ARGV[i + 1], 'type', ARGV[i + 2], 'event', ARGV[i + 3])
    seen = position
    new = new + 1
  end
end
redis.call('HSET', KEYS[2], ARGV[1], string.format('%.0f', seen))
return new
"""
_DIGEST = hashlib.sha1(_SHIP.encode(), usedforsecurity=False).hexdigest()

logger = logging.getLogger(__name__)


class Relay:
    def __init__(
        self, outbox: Outbox, url: str, stream: str, length: int, metrics: EventMetrics, password: str | None = None
    ) -> None:
        self.reader = f"redis {stream}"
        self._outbox = outbox
        self._keys = (stream, f"{{{stream}}}:positions")  # of one slot, where Redis is a cluster
        self._length = length
        self._metrics = metrics
        self._redis = redis_client(url, password, answer_seconds=ANSWER_SECONDS)
        self._failing = False

    async def run(self) -> None:
        """Until it is cancelled."""
        lock = self._outbox.path.with_name(f"{self._outbox.path.name}.relay")
        try:
            await FolderWorker(lock, self.ship, lambda: ()).run()
        finally:
            await self._redis.aclose()

    async def ship(self) -> None:
        """All that there is, or until Redis or the outbox fails: then the rest goes the next time."""
        try:
            while batch := await asyncio.to_thread(self._next):
                outbox, entries = batch
                self._metrics.waiting.set(await asyncio.to_thread(self._outbox.waiting, self.reader))
                await self._send(outbox, entries)
                await asyncio.to_thread(self._outbox.advance, self.reader, entries[-1].position)
                self._note_success()
        except (RedisError, sqlite3.Error, OSError) as error:
            self._note_failure(error)
        else:
            self._metrics.waiting.set(0)

    def _next(self) -> tuple[str, list[Entry]] | None:
        """The outbox's name, and what goes next."""
        entries, size = [], 0
        for entry in self._outbox.read(self._outbox.position(self.reader), MOST_AT_ONCE):
            size += len(entry.event)
            if entries and size > MOST_BYTES_AT_ONCE:
                break
            entries.append(entry)
        return (self._outbox.name, entries) if entries else None

    async def _send(self, outbox: str, entries: Sequence[Entry]) -> None:
        arguments: list[str | bytes | int] = [outbox, self._length]
        for entry in entries:
            arguments += [entry.position, entry.id, entry.type, entry.event]
        try:
            await self._redis.execute_command("EVALSHA", _DIGEST, 2, *self._keys, *arguments)
        except NoScriptError:
            await self._redis.execute_command("EVAL", _SHIP, 2, *self._keys, *arguments)

    def _note_failure(self, error: Exception) -> None:
        self._metrics.ship_failures.inc()
        if not self._failing:
            log_event(logger, "events are not shipped", level=logging.ERROR, reason=type(error).__name__)
        self._failing = True

    def _note_success(self) -> None:
        if self._failing:
            log_event(logger, "events are shipped again")
        self._failing = False
