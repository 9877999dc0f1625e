"""Generations that the server owns: readers, ends, a log that fails, and processes that hand them to each other."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from pathlib import Path

import pytest

from serving.engine.request import SamplingParams, TokenEvent
from serving.errors import (
    EngineError,
    EngineUnavailableError,
    NotFoundError,
    StreamCancelledError,
    StreamLogError,
    WeftError,
)
from serving.generation.request import PreparedPrompt
from serving.sessions.durable_generations import DurableGenerations, DurablePolicy, Events, Opened
from serving.sessions.generation_log import LOG_UNAVAILABLE, GenerationLog, LogLimits
from serving.sessions.generation_log_memory import MemoryGenerationLog
from serving.sessions.generation_log_sqlite import SqliteGenerationLog
from serving.sessions.logged_generation import Admitted, LoggedEvent
from tests.serving.api.virtual_time import run_in_virtual_time

PATIENCE = 180.0  # seconds; only a broken test waits that long
PROMPT = PreparedPrompt(
    request_id="r",
    prompt_token_ids=(1, 2),
    prompt_text=None,
    sampling=SamplingParams(),
    n=1,
    stop=(),
    include_stop_str_in_output=False,
    skip_special_tokens=True,
    kept_special_tokens=frozenset(),
    cache_salt="",
)


class Source:
    """What generates: tokens 0, 1, 2 ... `length`, each when it is let."""

    def __init__(self, length: int = 5, *, free: bool = False, pause: float = 0.0) -> None:
        self.length = length
        self.free = free
        self.pause = pause
        self.turns = asyncio.Semaphore(0)
        self.resumed_after: list[int] = []
        self.closed = 0

    def let(self, count: int) -> None:
        for _ in range(count):
            self.turns.release()

    async def begin(self, opened: Opened) -> Events:
        await opened((PROMPT,))
        async with aclosing(self.rest(0)) as events:
            async for event in events:
                yield event

    async def resume(self, admitted: Admitted, past: Sequence[LoggedEvent]) -> Events:
        self.resumed_after.append(len(past))
        assert [event.event.token_ids for event in past] == [(i,) for i in range(len(past))]
        assert admitted.prompts == (PROMPT,)
        async with aclosing(self.rest(len(past))) as events:
            async for event in events:
                yield event

    async def rest(self, first: int) -> AsyncGenerator[LoggedEvent, None]:
        try:
            for token in range(first, self.length):
                if not self.free:
                    await self.turns.acquire()
                await asyncio.sleep(self.pause)
                yield LoggedEvent(0, 0, TokenEvent(request_id="r", token_ids=(token,)))
        finally:
            self.closed += 1


class World:
    """One process over a log."""

    def __init__(self, source: Source, log: GenerationLog, policy: DurablePolicy | None = None) -> None:
        self.counts: list[str] = []
        self.source = source
        self.log = log
        self.durable = DurableGenerations(log, source.resume, policy, self.counts.append)

    async def start(self, stream_id: str = "s", grace: float | None = None) -> None:
        def describe(prompts: tuple[PreparedPrompt, ...]) -> Admitted:
            return Admitted(
                stream_id=stream_id,
                protocol="test",
                request_id="r",
                body=b"",
                created=0,
                prompts=prompts,
                owner="me",
                grace_seconds=grace,
            )

        await self.durable.start(self.source.begin, describe)

    async def logged(self, count: int) -> None:
        """Until so many records are written."""
        async with asyncio.timeout(PATIENCE):
            while (page := await self.log.read("s", 0)) is None or len(page.records) < count:
                await asyncio.sleep(0)

    async def read(self, stream_id: str = "s") -> list[int]:
        async with aclosing(self.durable.follow(stream_id)) as events:
            return [token async for event in events for token in event.event.token_ids]


class FailingLog(MemoryGenerationLog):
    def __init__(self) -> None:
        super().__init__()
        self.fails = False

    async def append(self, stream_id: str, first: int, records: Sequence[bytes], *, ended: bool = False) -> None:
        self._check()
        await super().append(stream_id, first, records, ended=ended)

    async def rewrite(self, stream_id: str, admitted: bytes, records: Sequence[bytes], *, ended: bool) -> None:
        self._check()
        await super().rewrite(stream_id, admitted, records, ended=ended)

    async def trim(self) -> None:
        self._check()

    def _check(self) -> None:
        if self.fails:
            raise StreamLogError("the log is away", code=LOG_UNAVAILABLE)


def in_virtual_time(test: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        await test()

    run_in_virtual_time(run())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.001)


async def test_every_reader_gets_every_event_whenever_it_comes() -> None:
    world = World(Source(free=True), MemoryGenerationLog())
    await world.start()
    first = asyncio.ensure_future(world.read())
    assert await world.read() == [0, 1, 2, 3, 4]
    assert await first == [0, 1, 2, 3, 4]
    assert world.durable.running == ()
    assert await world.read() == [0, 1, 2, 3, 4]


async def test_only_the_owner_finds_it() -> None:
    world = World(Source(free=True), MemoryGenerationLog())
    await world.start()
    assert (await world.durable.find("s", "me")).request_id == "r"
    for stream_id, owner in (("s", "another"), ("s", ""), ("t", "me")):
        with pytest.raises(NotFoundError):
            await world.durable.find(stream_id, owner)


def test_a_stream_that_nobody_reads_ends_after_its_grace_time() -> None:
    async def test() -> None:
        world = World(Source(), MemoryGenerationLog())
        await world.start(grace=60.0)
        await asyncio.sleep(59.0)
        assert world.source.closed == 0
        await asyncio.sleep(2.0)
        assert world.source.closed == 1
        with pytest.raises(StreamCancelledError) as ended:
            await world.read()
        assert ended.value.code == "no_reader"

    in_virtual_time(test)


def test_a_reader_keeps_a_stream_and_its_grace_begins_anew_when_it_leaves() -> None:
    async def test() -> None:
        world = World(Source(), MemoryGenerationLog())
        await world.start(grace=60.0)
        reader = asyncio.ensure_future(world.read())
        await asyncio.sleep(1000.0)
        reader.cancel()
        await asyncio.sleep(59.0)
        assert world.source.closed == 0
        await asyncio.sleep(2.0)
        assert world.source.closed == 1

    in_virtual_time(test)


def test_a_stream_without_a_grace_time_needs_no_reader() -> None:
    async def test() -> None:
        world = World(Source(pause=1000.0, free=True), MemoryGenerationLog())
        await world.start(grace=None)
        await asyncio.sleep(10000.0)
        assert await world.read() == [0, 1, 2, 3, 4]

    in_virtual_time(test)


async def test_a_cancel_ends_it_once_with_its_reason() -> None:
    world = World(Source(), MemoryGenerationLog())
    await world.start()
    reader = asyncio.ensure_future(world.read())
    assert await world.durable.cancel("s")
    assert await world.durable.cancel("s")
    for read in (reader, asyncio.ensure_future(world.read())):
        with pytest.raises(StreamCancelledError):
            await read
    await until(lambda: world.counts == ["started", "failed"])
    assert world.source.closed == 1
    assert not await world.durable.cancel("s")


async def test_what_fails_before_it_is_admitted_is_raised_and_leaves_nothing() -> None:
    async def refused(opened: Opened) -> Events:
        raise EngineUnavailableError("no", code="engine_unavailable")
        yield

    world = World(Source(), MemoryGenerationLog())
    with pytest.raises(EngineUnavailableError):
        await world.durable.start(refused, lambda _: pytest.fail("nothing was admitted"))
    assert world.durable.running == ()


@pytest.mark.parametrize(
    ("failure", "code"),
    [(EngineUnavailableError("lost", code="engine_lost"), "engine_lost"), (ValueError("secret"), "internal_error")],
)
async def test_a_failure_is_the_same_for_every_reader_and_tells_no_secret(failure: Exception, code: str) -> None:
    async def failing(opened: Opened) -> Events:
        await opened((PROMPT,))
        yield LoggedEvent(0, 0, TokenEvent(request_id="r", token_ids=(0,)))
        raise failure

    world = World(Source(), MemoryGenerationLog())
    world.source.begin = failing  # type: ignore[method-assign]
    await world.start()
    for _ in range(2):
        with pytest.raises(WeftError) as raised:
            await world.read()
        assert raised.value.code == code
        assert "secret" not in raised.value.message


async def test_a_log_that_fails_in_the_middle_costs_no_reader_anything_and_is_written_anew() -> None:
    log = FailingLog()
    world = World(Source(), log)
    await world.start()
    reader = asyncio.ensure_future(world.read())
    world.source.let(2)
    await world.logged(2)
    log.fails = True
    world.source.let(2)
    await until(lambda: world.durable.notice("s") == LOG_UNAVAILABLE)
    await world.durable.tick()
    assert world.durable.notice("s") == LOG_UNAVAILABLE
    log.fails = False
    await world.durable.tick()
    assert world.durable.notice("s") is None
    world.source.let(1)
    assert await reader == [0, 1, 2, 3, 4]
    assert await world.read() == [0, 1, 2, 3, 4]
    await until(lambda: "ended" in world.counts)
    assert world.durable.running == ()
    assert {"undurable", "mended"} <= set(world.counts)


async def test_a_stream_that_ended_while_the_log_failed_can_still_be_read() -> None:
    log = FailingLog()
    world = World(Source(free=True), log)
    log.fails = True
    await world.start()
    assert await world.read() == [0, 1, 2, 3, 4]
    assert await world.read() == [0, 1, 2, 3, 4]
    log.fails = False
    await world.durable.tick()
    page = await log.read("s", 0)
    assert page is not None
    assert page.ended
    assert len(page.records) == 6


async def test_a_failing_log_refuses_new_streams_where_that_is_the_policy() -> None:
    world = World(Source(), MemoryGenerationLog(LogLimits(max_bytes=1)), DurablePolicy(refuse_without_log=True))
    with pytest.raises(StreamLogError) as refused:
        await world.start()
    assert refused.value.code == "log_full"
    assert world.source.closed == 0
    assert world.durable.running == ()


@pytest.fixture
def sqlite(tmp_path: Path) -> Callable[[], SqliteGenerationLog]:
    return lambda: SqliteGenerationLog(tmp_path / "streams.sqlite")


async def test_what_one_process_hands_over_another_continues_without_a_gap(
    sqlite: Callable[[], SqliteGenerationLog],
) -> None:
    old, new = World(Source(), sqlite()), World(Source(), sqlite())
    await old.start()
    reader = asyncio.ensure_future(old.read())
    far = asyncio.ensure_future(new.read())
    old.source.let(2)
    await old.logged(2)
    await old.durable.hand_over()
    with pytest.raises(EngineUnavailableError) as moved:
        await reader
    assert moved.value.code == "stream_moved"
    assert old.source.closed == 1
    await new.durable.tick()
    new.source.let(5)
    assert await far == [0, 1, 2, 3, 4]
    assert new.source.resumed_after == [2]
    assert "handed_over" in old.counts
    assert "taken_up" in new.counts
    await old.durable.close()
    await new.durable.close()


async def test_a_process_that_dies_leaves_its_streams_to_the_next(sqlite: Callable[[], SqliteGenerationLog]) -> None:
    log = sqlite()
    old, new = World(Source(), log), World(Source(free=True), sqlite())
    await old.start()
    old.source.let(3)
    await old.logged(3)
    await log.close()  # as the kernel does for a process that is killed: the lock is gone, the entry is not released
    await new.durable.tick()
    assert await new.read() == [0, 1, 2, 3, 4]
    assert new.source.resumed_after == [3]
    await new.durable.close()
    for task in old.durable._tasks:
        task.cancel()


async def test_a_process_that_was_replaced_writes_nothing_and_its_readers_go_on_from_the_log(
    sqlite: Callable[[], SqliteGenerationLog],
) -> None:
    log = sqlite()
    old, new = World(Source(), log), World(Source(free=True), sqlite())
    await old.start()
    reader = asyncio.ensure_future(old.read())
    await log.release(["s"])  # as where its lease ended while it stood still
    await new.durable.tick()
    old.source.let(1)
    assert await reader == [0, 1, 2, 3, 4]
    assert old.source.closed == 1
    assert "lost_to_another" in old.counts
    await old.durable.close()
    await new.durable.close()


async def test_a_cancel_and_a_reader_in_another_process_reach_the_one_that_generates(
    sqlite: Callable[[], SqliteGenerationLog],
) -> None:
    here, there = World(Source(), sqlite()), World(Source(), sqlite())
    await here.start()
    reader = asyncio.ensure_future(there.read())
    here.source.let(1)
    await there.durable.cancel("s")
    await here.durable.tick()
    with pytest.raises(StreamCancelledError):
        await reader
    await here.durable.close()
    await there.durable.close()


async def test_an_entry_that_cannot_be_read_is_ended_and_taken_up_by_nobody(
    sqlite: Callable[[], SqliteGenerationLog],
) -> None:
    log = sqlite()
    await log.create("s", b"of another version")
    await log.release(["s"])
    world = World(Source(), sqlite())
    await world.durable.tick()
    await world.durable.tick()
    assert world.counts == ["unreadable"]
    assert await log.claim() == []
    with pytest.raises(EngineError) as refused:
        await world.durable.find("s", "me")
    assert (refused.value.code, refused.value.retryable) == ("log_unreadable", False)
    await log.close()
    await world.durable.close()


async def test_a_wall_clock_that_jumps_ends_nothing_and_keeps_nothing_longer(
    monkeypatch: pytest.MonkeyPatch, sqlite: Callable[[], SqliteGenerationLog]
) -> None:
    world = World(Source(), sqlite())
    await world.start(grace=600.0)
    await world.start("ended")
    await world.durable.cancel("ended")
    await until(lambda: world.durable.running == ("s",))
    for jump in (-1e9, 1e9):
        now = time.time() + jump
        monkeypatch.setattr(time, "time", lambda now=now: now)
        await world.durable.tick()
        await world.log.trim()
    assert await world.log.admitted("ended") is not None
    reader = asyncio.ensure_future(world.read())
    world.source.let(5)
    assert await reader == [0, 1, 2, 3, 4]
    await world.durable.close()


async def test_what_was_claimed_while_the_log_failed_is_taken_up_later(
    sqlite: Callable[[], SqliteGenerationLog],
) -> None:
    old, new = World(Source(), sqlite()), World(Source(free=True), sqlite())
    await old.start()
    await old.durable.hand_over()
    assert await new.log.claim() == ["s"]  # and then reading it failed
    await new.durable.tick()
    assert await new.read() == [0, 1, 2, 3, 4]
    await new.durable.tick()
    assert new.counts.count("taken_up") == 1
    await old.durable.close()
    await new.durable.close()
