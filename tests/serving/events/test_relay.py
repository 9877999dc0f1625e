"""The outbox in a real Redis."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from redis import Redis

from serving.events.event_metrics import EventMetrics
from serving.events.outbox import Outbox
from serving.events.relay import MOST_AT_ONCE, MOST_BYTES_AT_ONCE, Relay
from tests.fakes.redis_server import RedisServer
from tests.serving.events.recording import entry

PATIENCE = 180.0  # seconds; only a broken test waits that long


class Shipped:
    """An outbox, and the stream that it is shipped to."""

    def __init__(self, folder: Path, server: RedisServer, *, length: int = 1_000_000) -> None:
        self.registry = CollectorRegistry()
        self.stream = f"events {folder}"
        self.outbox = Outbox(folder / "events")
        self.url = server.url
        self.length = length

    def relay(self) -> Relay:
        return Relay(self.outbox, self.url, self.stream, self.length, EventMetrics(CollectorRegistry()))

    @property
    def entries(self) -> list[dict[bytes, bytes]]:
        with Redis.from_url(self.url) as client:
            found: Any = client.xrange(self.stream)
            return [fields for _, fields in found]

    @property
    def ids(self) -> list[str]:
        return [fields[b"id"].decode() for fields in self.entries]


@pytest.fixture
def shipped(tmp_path: Path, redis_server: RedisServer) -> Shipped:
    return Shipped(tmp_path, redis_server)


async def test_all_that_is_in_the_outbox_is_shipped_once_and_in_its_order(shipped: Shipped) -> None:
    count = MOST_AT_ONCE + 10
    shipped.outbox.append([entry(number) for number in range(count)])
    relay = shipped.relay()
    await relay.ship()
    await relay.ship()
    assert shipped.ids == [f"run-{number}" for number in range(count)]
    assert shipped.entries[7] == {b"id": b"run-7", b"type": b"weft.tool.ended.v1", b"event": b"7 "}
    shipped.outbox.append([entry(count)])
    await shipped.relay().ship()
    assert len(shipped.ids) == count + 1
    assert shipped.outbox.waiting(relay.reader) == 0


async def test_large_events_are_shipped_a_few_at_a_time(shipped: Shipped) -> None:
    shipped.outbox.append(
        [entry(number, size=MOST_BYTES_AT_ONCE // 2 + (number == 1) * (4 << 20)) for number in range(4)]
    )
    await shipped.relay().ship()
    assert shipped.ids == [f"run-{number}" for number in range(4)]


async def test_what_was_shipped_and_not_noted_is_not_there_twice(shipped: Shipped) -> None:
    """As where a process dies between the two."""
    shipped.outbox.append([entry(number) for number in range(3)])
    before = shipped.outbox.path.read_bytes()
    await shipped.relay().ship()
    for name in ("-wal", "-shm"):
        shipped.outbox.path.with_name(shipped.outbox.path.name + name).unlink(missing_ok=True)
    shipped.outbox.path.write_bytes(before)
    shipped.outbox.append([entry(3)])
    await shipped.relay().ship()
    assert shipped.ids == ["run-0", "run-1", "run-2", "run-3"]


async def test_two_outboxes_share_a_stream(shipped: Shipped, tmp_path: Path, redis_server: RedisServer) -> None:
    (tmp_path / "b").mkdir()
    other = Shipped(tmp_path / "b", redis_server)
    other.stream = shipped.stream
    for number in range(4):
        one = (shipped, other)[number % 2]
        one.outbox.append([entry(number)])
        await one.relay().ship()
    assert shipped.ids == [f"run-{number}" for number in range(4)]


async def test_the_stream_is_kept_short(tmp_path: Path, redis_server: RedisServer) -> None:
    shipped = Shipped(tmp_path, redis_server, length=1000)
    shipped.outbox.append([entry(number) for number in range(3000)])
    await shipped.relay().ship()
    assert 1000 <= len(shipped.ids) < 1500
    assert shipped.ids[-1] == "run-2999"


async def test_one_process_of_several_ships_and_another_takes_over(shipped: Shipped) -> None:
    async with asyncio.timeout(PATIENCE):
        first, second = (asyncio.create_task(shipped.relay().run()) for _ in range(2))
        shipped.outbox.append([entry(0)])
        while shipped.ids != ["run-0"]:
            await asyncio.sleep(0.01)
        first.cancel()
        await asyncio.wait([first])
        shipped.outbox.append([entry(1)])
        while shipped.ids != ["run-0", "run-1"]:
            await asyncio.sleep(0.01)
        second.cancel()
        await asyncio.wait([second])


async def test_redis_may_be_away(tmp_path: Path, mortal_redis: RedisServer) -> None:
    shipped, metrics = Shipped(tmp_path, mortal_redis), EventMetrics(CollectorRegistry())
    relay = Relay(shipped.outbox, shipped.url, shipped.stream, 1000, metrics)
    mortal_redis.kill()
    shipped.outbox.append([entry(number) for number in range(5)])
    await relay.ship()
    assert (metrics.ship_failures._value.get(), metrics.waiting._value.get()) == (1, 5)
    mortal_redis.start()
    await relay.ship()
    assert shipped.ids == [f"run-{number}" for number in range(5)]
    assert metrics.waiting._value.get() == 0
