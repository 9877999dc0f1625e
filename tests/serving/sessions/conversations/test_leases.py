"""Whose turn it is, when clocks leap: no living process loses what it holds, and what the dead held comes free."""

from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest
from redis import Redis

from serving.sessions.conversations.postgres_store import PostgresConversationStore
from serving.sessions.conversations.redis_store import RedisConversationStore
from serving.sessions.conversations.sqlite_store import SqliteConversationStore
from serving.sessions.conversations.store import ConversationStore
from tests.fakes.postgres_server import PostgresServer
from tests.fakes.redis_server import RedisServer

LEASE, AN_HOUR = 15.0, 3600.0


class Leaping:
    """A store whose own clock can be set ahead or back."""

    def __init__(self, store: ConversationStore, kind: str, url: str) -> None:
        self.store = store
        self._kind = kind
        self._url = url

    async def leap(self, seconds: float) -> None:
        """As seen from the clock: what was written earlier is so much older."""
        if self._kind == "redis":
            with Redis.from_url(self._url) as redis:
                for name, till in redis.zrange("weft:leases", 0, -1, withscores=True):
                    redis.zadd("weft:leases", {name: till - seconds})
                looked = redis.get("weft:leases:looked")
                assert isinstance(looked, bytes)
                redis.set("weft:leases:looked", float(looked) - seconds)
            return
        connection = await asyncpg.connect(self._url)
        await connection.execute("UPDATE weft_leases SET expires = expires - $1", seconds)
        await connection.close()


@pytest.fixture(params=["redis", "postgres"])
async def leaping(request: pytest.FixtureRequest, redis_server: RedisServer) -> AsyncIterator[Leaping]:
    if request.param == "redis":
        with Redis.from_url(redis_server.url) as redis:  # other tests leave leases behind
            redis.flushdb()
        one = Leaping(RedisConversationStore(redis_server.url), "redis", redis_server.url)
    else:
        server: PostgresServer = request.getfixturevalue("postgres_server")
        connection = await asyncpg.connect(server.url)
        await connection.execute("DROP TABLE IF EXISTS weft_leases")
        await connection.close()
        one = Leaping(PostgresConversationStore(server.url), "postgres", server.url)
    yield one
    await one.store.release(["living", "dead"])
    await one.store.close()


@pytest.mark.parametrize("seconds", [AN_HOUR, -AN_HOUR], ids=["ahead", "back"])
async def test_a_leap_of_the_clock_takes_nothing_from_the_living_and_frees_what_the_dead_held(
    leaping: Leaping, seconds: float
) -> None:
    store = leaping.store
    await store.lease(["living", "dead"], LEASE)
    assert await store.expired(LEASE) == []
    await leaping.leap(seconds)
    assert await store.expired(LEASE) == []  # the first look after it
    await leaping.leap(LEASE - 5)  # time goes on, and only one of the two is renewed
    await store.lease(["living"], LEASE)
    assert await store.expired(LEASE) == []
    await leaping.leap(6)
    assert await store.expired(LEASE) == ["dead"]
    assert await store.expired(LEASE) == []


class Clocks:
    date, since_start = 1_800_000_000.0, 5000.0


@pytest.mark.parametrize("seconds", [AN_HOUR, -AN_HOUR], ids=["ahead", "back"])
async def test_leases_in_a_file_do_not_heed_the_date(tmp_path: Path, seconds: float) -> None:
    clocks = Clocks()
    path = tmp_path / "conversations.sqlite"
    store = SqliteConversationStore(path, None, lambda: clocks.date, lambda: clocks.since_start)
    await store.lease(["living"], LEASE)
    clocks.date += seconds
    assert await store.expired(LEASE) == []
    clocks.since_start += LEASE + 1
    assert await store.expired(LEASE) == ["living"]
    await store.close()


async def test_a_lease_from_before_the_machine_was_started_again_is_over(tmp_path: Path) -> None:
    clocks = Clocks()
    path = tmp_path / "conversations.sqlite"
    store = SqliteConversationStore(path, None, lambda: clocks.date, lambda: clocks.since_start)
    await store.lease(["dead"], LEASE)
    clocks.since_start = 10.0
    assert await store.expired(LEASE) == ["dead"]
    assert await store.expired(LEASE) == []
    await store.close()
