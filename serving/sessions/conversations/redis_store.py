"""Conversations in Redis: many API processes on many machines share them, and Redis itself forgets what nobody used
for its time. Redis's clock counts; it keeps what its own persistence keeps.

One Redis, or one primary with its replicas; not a cluster, whose scripts cannot reach keys of several slots.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import msgspec
from redis.exceptions import RedisError

from serving.errors import ConversationStoreError
from serving.redis_client import redis_client
from serving.sessions.conversations.quota import LIMITS, UNBOUNDED, Quota, Size, exceeded
from serving.sessions.conversations.records import Owner
from serving.sessions.conversations.store import KINDS, Edit, Key, NoTreeError, Rows

ANSWER_SECONDS = 5.0  # to connect, and for an answer
_TREE, _OWNED, _LEASES, _LOOKED = "weft:tree:", "weft:trees:", "weft:leases", "weft:leases:looked"
_SIZES, _HELD = "weft:sizes:", "weft:held:"  # bytes of a tenant's trees, and of all of them together
_SWEPT = 256  # members of an index that are looked at together

# KEYS: leases. ARGV: seconds, names...
_LEASE = """
local time = redis.call('TIME')
local till = time[1] + time[2] / 1000000 + ARGV[1]
for i = 2, #ARGV do redis.call('ZADD', KEYS[1], till, ARGV[i]) end
"""

# KEYS: leases, the time of the last look. ARGV: seconds.
# Where nobody has looked for the time of a lease, the clock has leapt, or nobody was there: all leases begin anew, so
# that no living process loses what it holds.
_EXPIRED = """
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local looked = tonumber(redis.call('GET', KEYS[2]) or now)
redis.call('SET', KEYS[2], string.format('%.6f', now))
if math.abs(now - looked) > tonumber(ARGV[1]) then
  for _, name in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do redis.call('ZADD', KEYS[1], now + ARGV[1], name) end
  return {}
end
local found = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now)
for _, name in ipairs(found) do redis.call('ZADD', KEYS[1], now + ARGV[1], name) end
return found
"""

# KEYS: tree, sizes, held, the tenant's index, the user's index, rows of each kind. ARGV: tree; the version that was
# read, or for a new tree "", tenant and user; the three bounds, or ""; milliseconds until it is forgotten, or ""; how
# many rows are put; of each its kind's number, name and value; of each that goes its kind's number and name.
# Gives 0; -1: there is no such tree; -2: somebody else was first; or a bound's number and what there is of it.
_WRITE = """
local is_new = ARGV[2] == ''
if not is_new then
  if redis.call('EXISTS', KEYS[1]) == 0 then return {-1} end
  if redis.call('HGET', KEYS[1], 'version') ~= ARGV[2] then return {-2} end
end
local puts = tonumber(ARGV[9])
local items, bytes = 0, 0
local function count(kind, name, length, sign)
  if kind == '{item}' then items = items + sign end
  bytes = bytes + sign * (#name + length)
end
local function count_old(kind, name)
  local rows = KEYS[5 + kind]
  if redis.call('HEXISTS', rows, name) == 1 then count(kind, name, redis.call('HSTRLEN', rows, name), -1) end
end
for i = 10, 9 + 3 * puts, 3 do
  count_old(ARGV[i], ARGV[i + 1])
  count(ARGV[i], ARGV[i + 1], #ARGV[i + 2], 1)
end
for i = 10 + 3 * puts, #ARGV, 2 do count_old(ARGV[i], ARGV[i + 1]) end
local there = {redis.call('SCARD', KEYS[4]), tonumber(redis.call('HGET', KEYS[1], 'items') or 0),
  tonumber(redis.call('GET', KEYS[3]) or 0)}
local growth = {is_new and 1 or 0, items, bytes}
for i = 1, 3 do
  local bound = tonumber(ARGV[4 + i])
  if bound and growth[i] > 0 and there[i] + growth[i] > bound then return {i, there[i]} end
end
if is_new then
  redis.call('HSET', KEYS[1], 'tenant', ARGV[3], 'user', ARGV[4], 'version', 0)
  redis.call('SADD', KEYS[4], ARGV[1])
  redis.call('SADD', KEYS[5], ARGV[1])
else
  redis.call('HINCRBY', KEYS[1], 'version', 1)
end
for i = 10 + 3 * puts, #ARGV, 2 do redis.call('HDEL', KEYS[5 + ARGV[i]], ARGV[i + 1]) end
for i = 10, 9 + 3 * puts, 3 do redis.call('HSET', KEYS[5 + ARGV[i]], ARGV[i + 1], ARGV[i + 2]) end
redis.call('HINCRBY', KEYS[1], 'items', items)
redis.call('HINCRBY', KEYS[2], ARGV[1], bytes)
redis.call('INCRBY', KEYS[3], bytes)
if ARGV[8] ~= '' then
  redis.call('PEXPIRE', KEYS[1], ARGV[8])
  for i = 6, #KEYS do redis.call('PEXPIRE', KEYS[i], ARGV[8]) end
end
return {0}
""".replace("{item}", str(KINDS.index("item") + 1))

# KEYS: index, sizes, held. ARGV: prefix of trees, 1 to drop them or 0 to forget those that are gone, trees...
_FORGET = """
for i = 3, #ARGV do
  local tree = ARGV[1] .. ARGV[i]
  if ARGV[2] == '1' then
    redis.call('DEL', tree, tree .. ':conversation', tree .. ':facts', tree .. ':item', tree .. ':turn')
  end
  if redis.call('EXISTS', tree) == 0 then
    redis.call('SREM', KEYS[1], ARGV[i])
    local size = redis.call('HGET', KEYS[2], ARGV[i])
    if size then
      redis.call('HDEL', KEYS[2], ARGV[i])
      if redis.call('DECRBY', KEYS[3], size) <= 0 then redis.call('DEL', KEYS[3]) end
    end
  end
end
return 0
"""


class RedisConversationStore:
    def __init__(self, url: str, retain_seconds: float | None = None, password: str | None = None) -> None:
        """`retain_seconds` None: for ever."""
        self._retain = retain_seconds
        self._redis = redis_client(url, password, answer_seconds=ANSWER_SECONDS)

    async def create(self, tree: str, owner: Owner, rows: Rows, quota: Quota = UNBOUNDED) -> None:
        with _reached():
            await self._write(tree, owner, "", Edit(rows), quota)

    async def owner(self, tree: str) -> Owner | None:
        with _reached():
            tenant, user = await _answer(self._redis.hmget(_TREE + tree, ["tenant", "user"]))
        return None if tenant is None else Owner(tenant.decode(), user.decode())

    async def read(self, tree: str, kind: str, names: Sequence[str] | None = None) -> dict[str, bytes]:
        with _reached():
            if names is None:
                found = await _answer(self._redis.hgetall(_rows(tree, kind)))
                return {name.decode(): found[name] for name in sorted(found)}
            values = await _answer(self._redis.hmget(_rows(tree, kind), list(names))) if names else []
        return {name: value for name, value in zip(names, values, strict=True) if value is not None}

    async def change(
        self, tree: str, keys: Sequence[Key], work: Callable[[Rows], Edit], quota: Quota = UNBOUNDED
    ) -> Any:
        with _reached():
            while True:
                asked = await _answer(self._redis.hmget(_TREE + tree, ["tenant", "user", "version"]))
                if None in asked:
                    raise NoTreeError(tree)
                tenant, user, version = (value.decode() for value in asked)
                edit = work(await self._found(tree, keys))
                if await self._write(tree, Owner(tenant, user), version, edit, quota):
                    return edit.outcome

    async def drop(self, tree: str) -> None:
        owner = await self.owner(tree)
        if owner is None:
            return
        with _reached():
            for index in _indices(owner):
                await self._forget(index, owner.tenant, [tree], drop=True)

    async def held(self, tenant: str) -> Size:
        with _reached():
            await self._sweep((tenant,))
            held = await _answer(self._redis.get(_HELD + _name(tenant)))
            return Size(trees=await _answer(self._redis.scard(_index(tenant))), bytes=int(held or 0))

    async def trees(self, tenant: str, user: str | None = None) -> list[str]:
        owner = (tenant,) if user is None else (tenant, user)
        with _reached():
            await self._sweep(owner)
            return sorted(name.decode() for name in await _answer(self._redis.smembers(_index(*owner))))

    async def lease(self, names: Sequence[str], seconds: float) -> None:
        with _reached():
            await _answer(self._redis.eval(_LEASE, 1, _LEASES, str(seconds), *names))

    async def release(self, names: Sequence[str]) -> None:
        with _reached():
            if names:
                await _answer(self._redis.zrem(_LEASES, *names))

    async def expired(self, seconds: float) -> list[str]:
        with _reached():
            found = await _answer(self._redis.eval(_EXPIRED, 2, _LEASES, _LOOKED, str(seconds)))
        return sorted(name.decode() for name in found)

    async def trim(self) -> None:
        """Redis drops trees by itself; what lists them is left."""
        with _reached():
            async for index in self._redis.scan_iter(match=f"{_OWNED}*"):
                await self._sweep(msgspec.json.decode(index[len(_OWNED) :]))

    async def purge(self) -> None:
        """Redis keeps what its own persistence keeps, until it writes its files anew."""

    async def close(self) -> None:
        await self._redis.aclose()

    async def _found(self, tree: str, keys: Sequence[Key]) -> dict[Key, bytes]:
        found: dict[Key, bytes] = {}
        for kind in sorted({kind for kind, _ in keys}):
            names = [name for of, name in keys if of == kind]
            values = await _answer(self._redis.hmget(_rows(tree, kind), names))
            found |= {(kind, name): value for name, value in zip(names, values, strict=True) if value is not None}
        return found

    async def _write(self, tree: str, owner: Owner, version: str, edit: Edit, quota: Quota) -> bool:
        """False: somebody else was first. Raises NoTreeError and QuotaError."""
        bounds = ["" if bound is None else str(bound) for bound in quota.bounds]
        lifetime = "" if self._retain is None else str(round(self._retain * 1000))
        puts = [part for (kind, name), value in edit.put.items() for part in (_number(kind), name, value)]
        drops = [part for kind, name in edit.drop for part in (_number(kind), name)]
        owned = [_SIZES + _name(owner.tenant), _HELD + _name(owner.tenant), *_indices(owner)]
        keys = [_TREE + tree, *owned, *(_rows(tree, kind) for kind in KINDS)]
        arguments = [tree, version, owner.tenant, owner.user, *bounds, lifetime, len(edit.put), *puts, *drops]
        for is_swept in (False, True):
            outcome, *used = await _answer(self._redis.eval(_WRITE, len(keys), *keys, *arguments))
            if outcome == -1:
                raise NoTreeError(tree)
            if outcome <= 0:
                return outcome == 0
            if is_swept:
                raise exceeded(LIMITS[outcome - 1], quota.bounds[outcome - 1] or 0, used[0])
            await self._sweep((owner.tenant,))  # what has expired is counted until it is missed
        raise AssertionError("a write was neither done nor refused")

    async def _sweep(self, owner: Sequence[str]) -> None:
        index = _index(*owner)
        members = [member async for member in self._redis.sscan_iter(index, count=_SWEPT)]
        for first in range(0, len(members), _SWEPT):
            await self._forget(index, owner[0], members[first : first + _SWEPT], drop=False)

    async def _forget(self, index: str, tenant: str, trees: Sequence[Any], *, drop: bool) -> None:
        keys = (index, _SIZES + _name(tenant), _HELD + _name(tenant))
        await _answer(self._redis.eval(_FORGET, len(keys), *keys, _TREE, int(drop), *trees))


def _rows(tree: str, kind: str) -> str:
    return f"{_TREE}{tree}:{kind}"


def _number(kind: str) -> int:
    return KINDS.index(kind) + 1


def _name(*owner: str) -> str:
    """As JSON: a tenant's name may hold anything."""
    return msgspec.json.encode(owner).decode()


def _index(*owner: str) -> str:
    return _OWNED + _name(*owner)


def _indices(owner: Owner) -> tuple[str, str]:
    return _index(owner.tenant), _index(owner.tenant, owner.user)


async def _answer(asked: Any) -> Any:
    """redis-py's types are those of both its clients."""
    return await cast(Awaitable[Any], asked)


@contextmanager
def _reached() -> Iterator[None]:
    try:
        yield
    except (RedisError, OSError) as error:
        raise ConversationStoreError("the store of conversations cannot be reached") from error
