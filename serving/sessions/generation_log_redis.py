"""The log in Redis: streams outlive the API process and its machine, and processes on many machines share them.

What waits is sent in one pipeline, one at a time. Each change is a script, so that a process which another has
replaced writes nothing. A process shows that it lives by a key that expires; Redis's own clock counts. Redis keeps what
its own persistence keeps: a stream that it has lost is written anew by the process that generates it.

One Redis, or one primary with its replicas; not a cluster, whose scripts cannot reach keys of several slots.
"""

import asyncio
import hashlib
import logging
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redis.exceptions import NoScriptError, OutOfMemoryError, RedisError

from serving.errors import StreamLogError
from serving.observability.logs import log_failure
from serving.redis_client import redis_client
from serving.sessions.generation_log import LOG_FULL, LOG_UNAVAILABLE, LogLimits, NotHeldError, Page, Signals

logger = logging.getLogger(__name__)

ANSWER_SECONDS = 2.0  # to connect, and for an answer
LEASE_SECONDS = 5.0  # after which a process that has not been heard of is taken for dead
LONGEST_RUN_SECONDS = 24 * 3600  # an unfinished entry that nobody takes up goes after so long

_OPEN, _ENDED, _SIZES = "weft:streams:open", "weft:streams:ended", "weft:streams:sizes"
_LOST, _TAKEN = -1, -2

# KEYS: entry, records, open, sizes. ARGV: stream, holder, admitted, seconds, replace (1 or 0).
_CREATE = """
local holder = redis.call('HGET', KEYS[1], 'holder')
if holder and holder ~= ARGV[2] then return -2 end
redis.call('DEL', KEYS[1], KEYS[2])
redis.call('HSET', KEYS[1], 'holder', ARGV[2], 'admitted', ARGV[3], 'ended', '0', 'cancelled', '0', 'reads', '0')
redis.call('EXPIRE', KEYS[1], ARGV[4])
redis.call('SADD', KEYS[3], ARGV[1])
redis.call('HSET', KEYS[4], ARGV[1], #ARGV[3])
return 0
"""

# KEYS: entry, records, open, sizes, ended. ARGV: stream, holder, first, ended, seconds, size, records...
_APPEND = """
local holder = redis.call('HGET', KEYS[1], 'holder')
if not holder then return -1 end
if holder ~= ARGV[2] then return -2 end
if redis.call('LLEN', KEYS[2]) ~= tonumber(ARGV[3]) then return -1 end
for i = 7, #ARGV do redis.call('RPUSH', KEYS[2], ARGV[i]) end
redis.call('HINCRBY', KEYS[4], ARGV[1], ARGV[6])
redis.call('EXPIRE', KEYS[2], ARGV[5])
if ARGV[4] == '1' then
  redis.call('HSET', KEYS[1], 'ended', '1')
  redis.call('EXPIRE', KEYS[1], ARGV[5])
  redis.call('SREM', KEYS[3], ARGV[1])
  redis.call('RPUSH', KEYS[5], ARGV[1])
end
return 0
"""

# KEYS: open, sizes. ARGV: holder, prefix of entries, prefix of holders. Gives the entries that were nobody's.
_CLAIM = """
local claimed = {}
for _, stream in ipairs(redis.call('SMEMBERS', KEYS[1])) do
  local entry = ARGV[2] .. stream
  local holder = redis.call('HGET', entry, 'holder')
  if not holder then
    redis.call('SREM', KEYS[1], stream)
    redis.call('HDEL', KEYS[2], stream)
  elseif holder ~= ARGV[1] and (holder == '' or redis.call('EXISTS', ARGV[3] .. holder) == 0) then
    redis.call('HSET', entry, 'holder', ARGV[1])
    claimed[#claimed + 1] = stream
  end
end
return claimed
"""

# KEYS: entry. ARGV: holder.
_RELEASE = """
if redis.call('HGET', KEYS[1], 'holder') == ARGV[1] then redis.call('HSET', KEYS[1], 'holder', '') end
return 0
"""

# KEYS: entry. ARGV: field, amount. Nothing is made where there is no entry. Gives whether there is one that goes on.
_MARK = """
local ended = redis.call('HGET', KEYS[1], 'ended')
if not ended then return 0 end
redis.call('HINCRBY', KEYS[1], ARGV[1], ARGV[2])
if ended == '0' then return 1 end
return 0
"""

# KEYS: ended, sizes. ARGV: prefix of entries, prefix of records, most bytes. Gives the bytes that are kept.
_TRIM = """
local total = 0
local sizes = redis.call('HGETALL', KEYS[2])
for i = 2, #sizes, 2 do total = total + tonumber(sizes[i]) end
for _, stream in ipairs(redis.call('LRANGE', KEYS[1], 0, -1)) do
  local gone = redis.call('EXISTS', ARGV[1] .. stream) == 0
  if gone or total > tonumber(ARGV[3]) then
    total = total - tonumber(redis.call('HGET', KEYS[2], stream) or 0)
    redis.call('DEL', ARGV[1] .. stream, ARGV[2] .. stream)
    redis.call('HDEL', KEYS[2], stream)
    redis.call('LREM', KEYS[1], 1, stream)
  end
end
return total
"""

_SCRIPTS = {
    hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest(): text
    for text in (_CREATE, _APPEND, _CLAIM, _RELEASE, _MARK, _TRIM)
}
_NAMES = {text: digest for digest, text in _SCRIPTS.items()}
_ENTRY, _RECORDS, _HOLDER = "weft:stream:", "weft:records:", "weft:holder:"


@dataclass(slots=True)
class _Job:
    command: tuple[Any, ...]
    done: asyncio.Future[Any]


class RedisGenerationLog:
    shared = True

    def __init__(self, url: str, limits: LogLimits | None = None, *, password: str | None = None) -> None:
        self._limits = limits or LogLimits()
        self._holder = secrets.token_hex(8)
        self._redis = redis_client(url, password, answer_seconds=ANSWER_SECONDS)
        self._waiting: list[_Job] = []
        self._sender: asyncio.Task[None] | None = None
        self._size = 0

    async def create(self, stream_id: str, admitted: bytes) -> None:
        await self._create(stream_id, admitted)

    async def append(self, stream_id: str, first: int, records: Sequence[bytes], *, ended: bool = False) -> None:
        size = sum(map(len, records))
        await self._make_room(size)
        kept = round(self._limits.retain_seconds) if ended else LONGEST_RUN_SECONDS
        keys = (_ENTRY + stream_id, _RECORDS + stream_id, _OPEN, _SIZES, _ENDED)
        arguments = (stream_id, self._holder, first, int(ended), max(kept, 1), size, *records)
        self._check(stream_id, await self._run(_APPEND, keys, arguments))
        self._size += size

    async def rewrite(self, stream_id: str, admitted: bytes, records: Sequence[bytes], *, ended: bool) -> None:
        await self._create(stream_id, admitted)
        await self.append(stream_id, 0, records, ended=ended)

    async def admitted(self, stream_id: str) -> bytes | None:
        return await self._do("HGET", _ENTRY + stream_id, "admitted")

    async def read(self, stream_id: str, after: int) -> Page | None:
        # The end first: records that came after it was asked for are read with the next page.
        ended = await self._do("HGET", _ENTRY + stream_id, "ended")
        if ended is None:
            return None
        records = await self._do("LRANGE", _RECORDS + stream_id, after, -1)
        return Page(records, ended == b"1")

    async def cancel(self, stream_id: str) -> bool:
        return bool(await self._run(_MARK, (_ENTRY + stream_id,), ("cancelled", 1)))

    async def touch(self, stream_id: str) -> None:
        await self._run(_MARK, (_ENTRY + stream_id,), ("reads", 1))

    async def signals(self) -> dict[str, Signals]:
        await self._show_life()
        names = [name.decode() for name in await self._do("SMEMBERS", _OPEN)]
        asked = [self._do("HMGET", _ENTRY + name, "holder", "cancelled", "reads") for name in names]
        found = zip(names, await asyncio.gather(*asked), strict=True)
        holder = self._holder.encode()
        return {name: Signals(entry[1] != b"0", int(entry[2])) for name, entry in found if entry[0] == holder}

    async def claim(self) -> list[str]:
        await self._show_life()
        claimed = await self._run(_CLAIM, (_OPEN, _SIZES), (self._holder, _ENTRY, _HOLDER))
        return [name.decode() for name in claimed]

    async def release(self, stream_ids: Sequence[str]) -> None:
        for stream_id in stream_ids:
            await self._run(_RELEASE, (_ENTRY + stream_id,), (self._holder,))

    async def entries(self) -> list[str]:
        return [name.decode() for name in await self._do("HKEYS", _SIZES)]

    async def drop(self, stream_ids: Sequence[str]) -> None:
        for name in stream_ids:
            await self._do("DEL", _ENTRY + name, _RECORDS + name)
            await self._do("SREM", _OPEN, name)
            await self._do("LREM", _ENDED, 1, name)
            await self._do("HDEL", _SIZES, name)

    async def trim(self) -> None:
        await self._trim_to(self._limits.max_bytes)

    async def close(self) -> None:
        if self._sender is not None:
            await asyncio.gather(self._sender, return_exceptions=True)
        await self._redis.aclose()

    async def _create(self, stream_id: str, admitted: bytes) -> None:
        await self._make_room(len(admitted))
        await self._show_life()
        keys = (_ENTRY + stream_id, _RECORDS + stream_id, _OPEN, _SIZES)
        arguments = (stream_id, self._holder, admitted, LONGEST_RUN_SECONDS)
        self._check(stream_id, await self._run(_CREATE, keys, arguments))
        self._size += len(admitted)

    async def _make_room(self, size: int) -> None:
        """Of other processes' writes, and of what has expired, it knows since the last `trim`."""
        most = self._limits.max_bytes - size
        if self._size > most:
            await self._trim_to(most)
        if self._size > most:
            raise StreamLogError("the log of streams is full", code=LOG_FULL)

    async def _trim_to(self, most_bytes: int) -> None:
        self._size = await self._run(_TRIM, (_ENDED, _SIZES), (_ENTRY, _RECORDS, most_bytes))

    async def _show_life(self) -> None:
        await self._do("SET", _HOLDER + self._holder, 1, "PX", round(LEASE_SECONDS * 1000))

    def _check(self, stream_id: str, outcome: int) -> None:
        if outcome == _TAKEN:
            raise NotHeldError(stream_id)
        if outcome == _LOST:
            raise StreamLogError("the log has lost this stream", code=LOG_UNAVAILABLE)

    async def _run(self, script: str, keys: tuple[str, ...], arguments: tuple[Any, ...]) -> Any:
        return await self._do("EVALSHA", _NAMES[script], len(keys), *keys, *arguments)

    async def _do(self, *command: Any) -> Any:
        job = _Job(command, asyncio.get_running_loop().create_future())
        self._waiting.append(job)
        if self._sender is None or self._sender.done():
            self._sender = asyncio.create_task(self._send())
        return await job.done

    async def _send(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            try:
                outcomes = await self._pipeline(batch)
            except Exception as error:  # no answer: what was done nobody knows, and `rewrite` does not ask
                if not isinstance(error, RedisError | OSError):
                    log_failure(logger, "the log of streams failed", error)
                for job in batch:
                    _settle(job, StreamLogError("the log of streams cannot be reached", code=LOG_UNAVAILABLE))
                continue
            for job, outcome in zip(batch, outcomes, strict=True):
                _settle(job, _failure(outcome) if isinstance(outcome, Exception) else outcome)

    async def _pipeline(self, batch: list[_Job]) -> list[Any]:
        outcomes = await self._execute(batch)
        missing = [i for i, outcome in enumerate(outcomes) if isinstance(outcome, NoScriptError)]
        if missing:
            for text in _SCRIPTS.values():
                await self._redis.script_load(text)
            again = await self._execute([batch[i] for i in missing])
            for i, outcome in zip(missing, again, strict=True):
                outcomes[i] = outcome
        return outcomes

    async def _execute(self, batch: list[_Job]) -> list[Any]:
        async with self._redis.pipeline(transaction=False) as pipeline:
            for job in batch:
                pipeline.execute_command(*job.command)
            return await pipeline.execute(raise_on_error=False)


def _settle(job: _Job, outcome: Any) -> None:
    if job.done.done():  # nobody waits any more
        return
    if isinstance(outcome, Exception):
        job.done.set_exception(outcome)
    else:
        job.done.set_result(outcome)


def _failure(error: Exception) -> StreamLogError:
    code = LOG_FULL if isinstance(error, OutOfMemoryError) else LOG_UNAVAILABLE
    return StreamLogError("the log of streams cannot be written", code=code)
