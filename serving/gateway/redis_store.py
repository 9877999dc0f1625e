"""Limits counted in Redis, for many API processes.

The three limits of a tenant are checked and taken in one Lua script, which Redis runs as one step: so that two
processes never take the same last place, and a refused request leaves no trace. Libraries of rate limits offer atomic
windows, but one limit at a time, and cannot give a part of what was taken back. The clock is Redis's own, so a process
whose clock is wrong takes no more than another. Where that clock is set back, what was taken in seconds that have not
come counts as taken now, so that no minute is longer than one. A script that runs twice, because its answer was lost,
counts once.

A running request is a member of a sorted set, with the time until which it counts; its process renews it. A process
that dies holds its tenant's places for LEASE_SECONDS and no longer.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

from redis.exceptions import NoScriptError, RedisError

from serving.gateway.limit_store import Demand, LimitName, StoreFailedError, Verdict
from serving.gateway.window import WINDOW_SECONDS, WindowState
from serving.redis_client import redis_client

ANSWER_SECONDS = 0.5  # to connect, and for an answer
LEASE_SECONDS = 60  # that a running request counts without being renewed
_SLOTS = WINDOW_SECONDS + 1
_KEPT_SECONDS = _SLOTS + 5
_REFUSALS: tuple[LimitName | None, ...] = (None, "requests_per_minute", "tokens_per_minute", "concurrency")

# KEYS: requests, tokens, running. ARGV[1]: milliseconds since 1970, or "" for Redis's own clock.
_CLOCK = """
local ms = tonumber(ARGV[1])
if not ms then
  local t = redis.call('TIME')
  ms = t[1] * 1000 + math.floor(t[2] / 1000)
end
local slot = math.floor(ms / 1000)
"""

# ARGV[2]: lease id; then the limits on requests, tokens and concurrency (-1: none), requests and tokens wanted.
_RESERVE = f"""{_CLOCK}
local function window(key, limit, wanted)
  if limit < 0 then return 0, 0, 0 end
  local used, newest, slots = 0, 0, {{}}
  local entries = redis.call('HGETALL', key)
  for i = 1, #entries, 2 do
    local at, amount = tonumber(entries[i]), tonumber(entries[i + 1])
    if at < slot - {WINDOW_SECONDS} then
      redis.call('HDEL', key, entries[i])
    else
      if at > slot then
        redis.call('HDEL', key, entries[i])
        redis.call('HINCRBY', key, slot, amount)
        at = slot
      end
      used = used + amount
      if at > newest then newest = at end
      slots[#slots + 1] = {{at, amount}}
    end
  end
  local wait, excess = 0, used + wanted - limit
  if excess > 0 then
    table.sort(slots, function(a, b) return a[1] < b[1] end)
    for _, entry in ipairs(slots) do
      excess = excess - entry[2]
      if excess <= 0 then
        wait = (entry[1] + {_SLOTS}) * 1000 - ms
        break
      end
    end
    if excess > 0 then wait = {_SLOTS} * 1000 end
  end
  local reset = 0
  if newest > 0 then reset = (newest + {_SLOTS}) * 1000 - ms end
  return used, wait, reset
end
local function take(key, limit, amount)
  if limit >= 0 and amount > 0 then
    redis.call('HINCRBY', key, slot, amount)
    redis.call('EXPIRE', key, {_KEPT_SECONDS})
  end
end
local most_requests, most_tokens, most_running = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local requests, tokens = tonumber(ARGV[6]), tonumber(ARGV[7])
redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', ms)
local longest = ms + {LEASE_SECONDS * 1000}
for _, lease in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], '(' .. string.format('%.0f', longest), '+inf')) do
  redis.call('ZADD', KEYS[3], longest, lease)
end
local used_requests, wait_requests, reset_requests = window(KEYS[1], most_requests, requests)
local used_tokens, wait_tokens, reset_tokens = window(KEYS[2], most_tokens, tokens)
local refused, wait = 0, 0
if redis.call('ZSCORE', KEYS[3], ARGV[2]) then refused = 0
elseif most_running >= 0 and redis.call('ZCARD', KEYS[3]) >= most_running then refused = 3
elseif wait_requests > 0 then refused, wait = 1, wait_requests
elseif wait_tokens > 0 then refused, wait = 2, wait_tokens
else
  take(KEYS[1], most_requests, requests)
  take(KEYS[2], most_tokens, tokens)
  redis.call('ZADD', KEYS[3], ms + {LEASE_SECONDS * 1000}, ARGV[2])
  redis.call('EXPIRE', KEYS[3], {LEASE_SECONDS})
  if most_requests >= 0 and requests > 0 then
    used_requests, reset_requests = used_requests + requests, (slot + {_SLOTS}) * 1000 - ms
  end
  if most_tokens >= 0 and tokens > 0 then
    used_tokens, reset_tokens = used_tokens + tokens, (slot + {_SLOTS}) * 1000 - ms
  end
end
return {{refused, wait, slot, used_requests, reset_requests, used_tokens, reset_tokens}}
"""

# ARGV[2]: lease id, [3]: the slot it was taken in; then requests and tokens to give back, below 0 to be taken.
_SETTLE = f"""{_CLOCK}
if redis.call('ZREM', KEYS[3], ARGV[2]) == 0 then return 0 end
local function give_back(key, amount)
  if amount > 0 then
    local left = tonumber(redis.call('HGET', key, ARGV[3]) or '0') - amount
    if left > 0 then redis.call('HSET', key, ARGV[3], left) else redis.call('HDEL', key, ARGV[3]) end
  elseif amount < 0 then
    redis.call('HINCRBY', key, slot, -amount)
    redis.call('EXPIRE', key, {_KEPT_SECONDS})
  end
end
give_back(KEYS[1], tonumber(ARGV[4]))
give_back(KEYS[2], tonumber(ARGV[5]))
return 0
"""

# ARGV[2..]: lease ids. One that is no longer there stays gone.
_KEEP = f"""{_CLOCK}
for i = 2, #ARGV do
  redis.call('ZADD', KEYS[3], 'XX', ms + {LEASE_SECONDS * 1000}, ARGV[i])
end
redis.call('EXPIRE', KEYS[3], {LEASE_SECONDS})
return 0
"""


class RedisStore:
    def __init__(self, url: str, *, password: str | None = None, clock: Callable[[], float] | None = None) -> None:
        """`clock` (seconds) in place of Redis's own, for several stores that must agree on an invented time."""
        self._clock = clock
        self._redis = redis_client(url, password, answer_seconds=ANSWER_SECONDS, reopens=True)

    async def reserve(self, demand: Demand) -> Verdict:
        limits = demand.limits
        most = (limits.requests_per_minute, limits.tokens_per_minute, limits.concurrency)
        bounds = [-1 if limit is None else limit for limit in most]
        arguments = (demand.lease_id, *bounds, demand.requests, demand.tokens)
        reply = await self._run(_RESERVE, demand.tenant, arguments)
        refused, wait, slot, used_requests, reset_requests, used_tokens, reset_tokens = map(int, reply)
        refused_by = _REFUSALS[refused]
        return Verdict(
            demand=demand,
            slot=slot,
            refused_by=refused_by,
            retry_after=None if refused_by in (None, "concurrency") else wait / 1000,
            requests=_state(limits.requests_per_minute, used_requests, reset_requests),
            tokens=_state(limits.tokens_per_minute, used_tokens, reset_tokens),
        )

    async def settle(self, verdict: Verdict, *, used_tokens: int, undo_request: bool = False) -> None:
        demand = verdict.demand
        tokens = 0 if demand.limits.tokens_per_minute is None else demand.tokens - used_tokens
        requests = demand.requests if undo_request and demand.limits.requests_per_minute is not None else 0
        await self._run(_SETTLE, demand.tenant, (demand.lease_id, verdict.slot, requests, tokens))

    async def keep(self, verdicts: list[Verdict]) -> None:
        by_tenant: dict[str, list[str]] = {}
        for verdict in verdicts:
            by_tenant.setdefault(verdict.demand.tenant, []).append(verdict.demand.lease_id)
        for tenant, lease_ids in by_tenant.items():
            await self._run(_KEEP, tenant, lease_ids)

    async def close(self) -> None:
        await self._redis.aclose()

    async def _run(self, script: str, tenant: str, arguments: Sequence[str | int]) -> Any:
        """Raises StoreFailedError."""
        now = "" if self._clock is None else str(round(self._clock() * 1000))
        # One tenant's keys lie on one node of a cluster: that is what the braces say.
        keys = [f"weft:{{{tenant}}}:{kind}" for kind in ("requests", "tokens", "running")]
        values = [*keys, now, *map(str, arguments)]
        digest = hashlib.sha1(script.encode()).hexdigest()  # Redis's name for a script
        try:
            async with asyncio.timeout(2 * ANSWER_SECONDS):
                try:
                    return await cast(Awaitable[Any], self._redis.evalsha(digest, len(keys), *values))
                except NoScriptError:  # Redis was restarted
                    return await cast(Awaitable[Any], self._redis.eval(script, len(keys), *values))
        except (RedisError, OSError, TimeoutError) as error:
            raise StoreFailedError(type(error).__name__) from error


def _state(limit: int | None, used: int, reset_ms: int) -> WindowState | None:
    return None if limit is None else WindowState(limit=limit, used=used, reset_seconds=reset_ms / 1000)
