"""What every log promises, whatever holds it."""

import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path

import pytest
from redis import Redis

from serving.errors import StreamLogError
from serving.sessions.generation_log import GenerationLog, LogLimits, NotHeldError, Page, Signals
from serving.sessions.generation_log_memory import MemoryGenerationLog
from serving.sessions.generation_log_redis import RedisGenerationLog
from serving.sessions.generation_log_sqlite import ENDED, OLDEST, SqliteGenerationLog
from tests.fakes.redis_server import RedisServer

Maker = Callable[..., GenerationLog]
ALL = ("memory", "sqlite", "redis")
SHARED = ("sqlite", "redis")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def make(
    request: pytest.FixtureRequest, tmp_path: Path, redis_server: RedisServer, clock: Clock
) -> AsyncIterator[Maker]:
    """Logs of one kind over one store: each call is another process."""
    kind = request.param
    made: list[GenerationLog] = []
    if kind == "redis":
        with Redis.from_url(redis_server.url) as client:
            for keys in ("weft:stream*", "weft:records:*", "weft:holder:*"):
                client.delete(*(client.keys(keys) or ["none"]))  # type: ignore[misc]

    def make_log(limits: LogLimits | None = None) -> GenerationLog:
        if kind == "memory":
            made.append(MemoryGenerationLog(limits, clock))
        elif kind == "sqlite":
            made.append(SqliteGenerationLog(tmp_path / "streams.sqlite", limits, clock))
        else:
            made.append(RedisGenerationLog(redis_server.url, limits))
        return made[-1]

    yield make_log
    for log in made:
        await log.close()


def kinds(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("make", names, indirect=True)


@kinds(*ALL)
async def test_records_are_read_from_any_position_and_the_end_is_known(make: Maker) -> None:
    log = make()
    await log.create("s", b"admitted")
    await log.append("s", 0, [b"a", b"b"])
    assert await log.read("s", 0) == Page([b"a", b"b"], False)
    await log.append("s", 2, [b"\x00c"], ended=True)
    assert await log.read("s", 1) == Page([b"b", b"\x00c"], True)
    assert await log.read("s", 3) == Page([], True)
    assert await log.admitted("s") == b"admitted"


@kinds(*ALL)
async def test_what_is_not_there_is_none(make: Maker) -> None:
    log = make()
    assert await log.admitted("s") is None
    assert await log.read("s", 0) is None
    assert not await log.cancel("s")
    await log.touch("s")
    assert await log.read("s", 0) is None
    with pytest.raises(StreamLogError):
        await log.append("s", 0, [b"a"])


@kinds(*ALL)
async def test_what_has_ended_cannot_be_cancelled_any_more(make: Maker) -> None:
    log = make()
    await log.create("s", b"admitted")
    assert await log.cancel("s")
    assert await log.cancel("s"), "asked for twice, and not ended yet"
    await log.append("s", 0, [b"a"], ended=True)
    assert not await log.cancel("s")


@kinds(*ALL)
async def test_a_rewrite_replaces_whatever_was_there(make: Maker) -> None:
    log = make()
    await log.create("s", b"old")
    await log.append("s", 0, [b"x", b"y"])
    await log.rewrite("s", b"new", [b"a"], ended=False)
    await log.append("s", 1, [b"b"])
    await log.rewrite("t", b"other", [b"c"], ended=True)
    assert await log.read("s", 0) == Page([b"a", b"b"], False)
    assert await log.admitted("s") == b"new"
    assert await log.read("t", 0) == Page([b"c"], True)


@kinds(*ALL)
async def test_a_full_log_refuses_and_keeps_what_runs(make: Maker) -> None:
    log = make(LogLimits(max_bytes=100))
    await log.create("s", b"x" * 50)
    with pytest.raises(StreamLogError) as refused:
        await log.create("t", b"x" * 60)
    assert refused.value.code == "log_full"
    await log.trim()
    await log.append("s", 0, [b"a"])
    assert await log.read("s", 0) == Page([b"a"], False)


@kinds(*ALL)
async def test_the_oldest_finished_entries_make_room(make: Maker) -> None:
    log = make(LogLimits(max_bytes=100))
    for name in "abc":
        await log.create(name, b"x" * 30)
        await log.append(name, 0, [b"yyyy"], ended=name != "c")
        await log.trim()
    found = {name: await log.admitted(name) is not None for name in "abc"}
    assert found == {"a": False, "b": True, "c": True}


@kinds("memory", "sqlite")
async def test_finished_entries_go_after_their_time_by_the_monotonic_clock(make: Maker, clock: Clock) -> None:
    log = make(LogLimits(retain_seconds=60))
    await log.create("ended", b"x")
    await log.append("ended", 0, [b"a"], ended=True)
    await log.create("running", b"x")
    await log.trim()
    clock.now += 59
    await log.trim()
    assert await log.admitted("ended") == b"x"
    clock.now += 2
    await log.trim()
    assert await log.admitted("ended") is None
    clock.now += 1e9
    await log.trim()
    assert await log.admitted("running") == b"x"


@kinds("redis")
async def test_entries_in_redis_expire_by_themselves(make: Maker, redis_server: RedisServer) -> None:
    log = make(LogLimits(retain_seconds=60))
    await log.create("s", b"x")
    await log.append("s", 0, [b"a"], ended=True)
    with Redis.from_url(redis_server.url) as client:
        for key in ("weft:stream:s", "weft:records:s"):
            assert 0 < client.ttl(key) <= 60  # type: ignore[operator]
        client.delete("weft:stream:s", "weft:records:s")
        await log.trim()
        assert client.hgetall("weft:streams:sizes") == {}
        assert client.llen("weft:streams:ended") == 0


@kinds(*SHARED)
async def test_another_process_reads_and_leaves_signals(make: Maker) -> None:
    holder, other = make(), make()
    await holder.create("s", b"x")
    await holder.append("s", 0, [b"a"])
    assert await other.read("s", 0) == Page([b"a"], False)
    assert await holder.signals() == {"s": Signals(False, 0)}
    await other.touch("s")
    await other.cancel("s")
    assert await holder.signals() == {"s": Signals(True, 1)}
    assert await other.signals() == {}


@kinds(*SHARED)
async def test_only_the_holder_writes(make: Maker) -> None:
    holder, other = make(), make()
    await holder.create("s", b"x")
    for write in (other.append("s", 0, [b"a"]), other.rewrite("s", b"y", [b"a"], ended=True)):
        with pytest.raises(NotHeldError):
            await write
    await other.release(["s"])
    await holder.append("s", 0, [b"b"])
    assert await other.read("s", 0) == Page([b"b"], False)


@kinds(*SHARED)
async def test_what_was_released_is_claimed_once(make: Maker) -> None:
    holder, other, third = make(), make(), make()
    for name in ("s", "t"):
        await holder.create(name, b"x")
    await holder.signals()
    assert await other.claim() == []
    await holder.release(["s"])
    assert await other.claim() == ["s"]
    assert await third.claim() == []
    with pytest.raises(NotHeldError):
        await holder.append("s", 0, [b"a"])
    await other.append("s", 0, [b"a"], ended=True)
    assert list(await holder.signals()) == ["t"]


@kinds("sqlite")
async def test_a_process_that_is_gone_leaves_its_entries(make: Maker) -> None:
    holder, other = make(), make()
    await holder.create("s", b"x")
    await holder.create("ended", b"x")
    await holder.append("ended", 0, [b"a"], ended=True)
    await holder.close()
    holder.close = other.trim  # type: ignore[method-assign] -- the fixture closes what it made
    assert await other.claim() == ["s"]


@kinds("redis")
async def test_a_process_whose_lease_has_ended_is_taken_for_dead(make: Maker, redis_server: RedisServer) -> None:
    holder, other = make(), make()
    await holder.create("s", b"x")
    with Redis.from_url(redis_server.url) as client:
        (lease,) = client.keys("weft:holder:*")  # type: ignore[misc]
        assert 0 < client.pttl(lease) <= 5000  # type: ignore[operator]
        assert await other.claim() == []
        client.delete(lease)
    assert await other.claim() == ["s"]


async def test_a_file_that_only_its_owner_can_read(tmp_path: Path) -> None:
    log = SqliteGenerationLog(tmp_path / "streams.sqlite")
    await log.create("s", b"x")
    for path in tmp_path.glob("streams.sqlite*"):
        assert path.stat().st_mode & 0o077 == 0, path
    await log.close()


async def test_a_file_gives_back_the_space_of_what_has_gone(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "streams.sqlite"
    log = SqliteGenerationLog(path, LogLimits(retain_seconds=60), clock)
    await log.create("s", b"x")
    await log.append("s", 0, [b"x" * 1000] * 500, ended=True)
    await log.trim()
    clock.now += 61
    for _ in range(4):  # some of it at a time
        await log.trim()
    await log.close()
    with sqlite3.connect(path) as database:
        pages, free = (database.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count"))
    assert free == 0
    assert pages < 50


@pytest.mark.parametrize(
    ("query", "plan"),
    [
        (ENDED, "SEARCH streams USING COVERING INDEX ended_sizes (ended=?)"),
        (OLDEST, "SEARCH streams USING INDEX ended_by_age (ended=?)"),
    ],
)
async def test_what_has_ended_is_found_without_reading_all_entries(tmp_path: Path, query: str, plan: str) -> None:
    path = tmp_path / "streams.sqlite"
    log = SqliteGenerationLog(path)
    with closing(sqlite3.connect(path)) as database:
        assert [row[3] for row in database.execute(f"EXPLAIN QUERY PLAN {query}")] == [plan]
    await log.close()


async def test_more_than_a_few_small_entries_make_room_for_a_large_one(tmp_path: Path) -> None:
    log = SqliteGenerationLog(tmp_path / "streams.sqlite", LogLimits(max_bytes=4000))
    for number in range(40):
        await log.create(f"small-{number}", b"x" * 50)
        await log.append(f"small-{number}", 0, [b"y" * 50], ended=True)
    await log.create("running", b"")
    await log.create("large", b"x" * 3900)
    assert sorted(await log.entries()) == ["large", "running", "small-39"]
    await log.trim()
    await log.append("running", 0, [b"z" * 100])
    assert sorted(await log.entries()) == ["large", "running"]
    with pytest.raises(StreamLogError):
        await log.append("running", 1, [b"z"])
    await log.close()


async def test_a_disk_that_refuses_fails_the_write_and_not_the_log(tmp_path: Path) -> None:
    import resource

    log = SqliteGenerationLog(tmp_path / "streams.sqlite")
    await log.create("s", b"x")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, hard))
    try:
        with pytest.raises(StreamLogError):
            await log.append("s", 0, [b"x" * (1 << 20)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    await log.append("s", 0, [b"a"])
    assert await log.read("s", 0) == Page([b"a"], False)
    await log.close()


async def test_a_redis_that_died_fails_calls_and_is_used_again_when_it_is_back(mortal_redis: RedisServer) -> None:
    log = RedisGenerationLog(mortal_redis.url)
    await log.create("s", b"x")
    await log.append("s", 0, [b"a"])
    mortal_redis.kill()
    with pytest.raises(StreamLogError):
        await log.append("s", 1, [b"b"])
    mortal_redis.start()
    with pytest.raises(StreamLogError):  # it has lost what it held
        await log.append("s", 1, [b"b"])
    await log.rewrite("s", b"x", [b"a", b"b"], ended=False)
    await log.append("s", 2, [b"c"], ended=True)
    assert await log.read("s", 0) == Page([b"a", b"b", b"c"], True)
    await log.close()
