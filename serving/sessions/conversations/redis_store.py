"""Conversations in Redis: many API processes on many machines share them, and Redis itself forgets what nobody used
for its time. Redis's clock counts; it keeps what its own persistence keeps.

One Redis, or one primary with its replicas; not a cluster, whose transactions cannot reach keys of several slots.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import msgspec
from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, WatchError

from serving.errors import ConversationStoreError
from serving.sessions.conversations.records import Owner
from serving.sessions.conversations.store import KINDS, Edit, Key, NoTreeError, Rows

ANSWER_SECONDS = 5.0  # to connect, and for an answer
_TREE, _OWNED, _LEASES = "weft:tree:", "weft:trees:", "weft:leases"
_SWEPT = 256  # members of an index that are looked at together

# KEYS: leases. ARGV: seconds, names...
_LEASE = """
local time = redis.call('TIME')
local till = time[1] + time[2] / 1000000 + ARGV[1]
for i = 2, #ARGV do redis.call('ZADD', KEYS[1], till, ARGV[i]) end
"""

# KEYS: leases. ARGV: seconds.
_EXPIRED = """
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local found = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now)
for _, name in ipairs(found) do redis.call('ZADD', KEYS[1], now + ARGV[1], name) end
return found
"""


class RedisConversationStore:
    def __init__(self, url: str, retain_seconds: float | None = None, password: str | None = None) -> None:
        """`retain_seconds` None: for ever."""
        self._retain = retain_seconds
        self._redis = Redis.from_url(
            url,
            password=password,
            socket_timeout=ANSWER_SECONDS,
            socket_connect_timeout=ANSWER_SECONDS,
            retry=Retry(NoBackoff(), 0),
        )

    async def create(self, tree: str, owner: Owner, rows: Rows) -> None:
        with _reached():
            async with self._redis.pipeline(transaction=True) as pipe:
                pipe.hset(_TREE + tree, mapping={"tenant": owner.tenant, "user": owner.user, "version": 0})
                for index in _indices(owner):
                    pipe.sadd(index, tree)
                self._put(pipe, tree, rows)
                await pipe.execute()

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

    async def change(self, tree: str, keys: Sequence[Key], work: Callable[[Rows], Edit]) -> Any:
        with _reached():
            while True:
                async with self._redis.pipeline(transaction=True) as pipe:
                    try:
                        return await self._changed(pipe, tree, keys, work)
                    except WatchError:  # somebody else was first
                        continue

    async def _changed(self, pipe: Pipeline, tree: str, keys: Sequence[Key], work: Callable[[Rows], Edit]) -> Any:
        await pipe.watch(_TREE + tree)
        if not await _answer(pipe.exists(_TREE + tree)):
            raise NoTreeError(tree)
        found: dict[Key, bytes] = {}
        for kind in sorted({kind for kind, _ in keys}):
            names = [name for of, name in keys if of == kind]
            values = await _answer(pipe.hmget(_rows(tree, kind), names))
            found |= {(kind, name): value for name, value in zip(names, values, strict=True) if value is not None}
        edit = work(found)
        pipe.multi()
        pipe.hincrby(_TREE + tree, "version", 1)
        for kind, name in edit.drop:
            pipe.hdel(_rows(tree, kind), name)
        self._put(pipe, tree, edit.put)
        await pipe.execute()
        return edit.outcome

    async def drop(self, tree: str) -> None:
        owner = await self.owner(tree)
        with _reached():
            async with self._redis.pipeline(transaction=True) as pipe:
                pipe.delete(*_keys(tree))
                for index in () if owner is None else _indices(owner):
                    pipe.srem(index, tree)
                await pipe.execute()

    async def trees(self, tenant: str, user: str | None = None) -> list[str]:
        index = _index(tenant) if user is None else _index(tenant, user)
        with _reached():
            await self._sweep(index)
            return sorted(name.decode() for name in await _answer(self._redis.smembers(index)))

    async def lease(self, names: Sequence[str], seconds: float) -> None:
        with _reached():
            await _answer(self._redis.eval(_LEASE, 1, _LEASES, str(seconds), *names))

    async def release(self, names: Sequence[str]) -> None:
        with _reached():
            if names:
                await _answer(self._redis.zrem(_LEASES, *names))

    async def expired(self, seconds: float) -> list[str]:
        with _reached():
            found = await _answer(self._redis.eval(_EXPIRED, 1, _LEASES, str(seconds)))
        return sorted(name.decode() for name in found)

    async def trim(self) -> None:
        """Redis drops trees by itself; what lists them is left."""
        with _reached():
            async for index in self._redis.scan_iter(match=f"{_OWNED}*"):
                await self._sweep(index.decode())

    async def close(self) -> None:
        await self._redis.aclose()

    def _put(self, pipe: Pipeline, tree: str, rows: Rows) -> None:
        for (kind, name), value in rows.items():
            pipe.hset(_rows(tree, kind), name, value)
        if self._retain is not None:
            for key in _keys(tree):
                pipe.pexpire(key, round(self._retain * 1000))

    async def _sweep(self, index: str) -> None:
        members = [member async for member in self._redis.sscan_iter(index, count=_SWEPT)]
        for first in range(0, len(members), _SWEPT):
            part = members[first : first + _SWEPT]
            async with self._redis.pipeline(transaction=False) as pipe:
                for member in part:
                    pipe.exists(_TREE + member.decode())
                lives = await pipe.execute()
            gone = [member for member, live in zip(part, lives, strict=True) if not live]
            if gone:
                await _answer(self._redis.srem(index, *gone))


def _rows(tree: str, kind: str) -> str:
    return f"{_TREE}{tree}:{kind}"


def _keys(tree: str) -> list[str]:
    return [_TREE + tree, *(_rows(tree, kind) for kind in KINDS)]


def _index(*owner: str) -> str:
    """As JSON: a tenant's name may hold anything."""
    return _OWNED + msgspec.json.encode(owner).decode()


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
