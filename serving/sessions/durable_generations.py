"""Generations that the server owns, and not a connection.

Each runs in a task of its own and is written to the log before anybody reads it, so what a client has seen is never
lost and never comes twice. Any number of clients follow it, from any position. It ends when it is complete, when it is
cancelled, or when nobody has read it for its grace time; a client that leaves ends nothing.

Where the log fails, streams go on in memory, and are written anew once it is back.
"""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from serving.errors import (
    EngineError,
    EngineUnavailableError,
    InternalError,
    NotFoundError,
    StreamCancelledError,
    StreamLogError,
    WeftError,
)
from serving.generation.request import PreparedPrompt
from serving.observability.logs import log_event, log_failure
from serving.sessions.careful_writer import CarefulWriter
from serving.sessions.generation_log import GenerationLog, NotHeldError
from serving.sessions.live_generation import LiveGeneration
from serving.sessions.logged_generation import (
    Admitted,
    LoggedEvent,
    decode_admitted,
    decode_record,
    encode_end,
    encode_event,
    past_events,
)

MOVED = "stream_moved"
LOG_UNREADABLE = "log_unreadable"
_TOUCH_SECONDS = 1.0

Events = AsyncGenerator[LoggedEvent, None]
Opened = Callable[[tuple[PreparedPrompt, ...]], Awaitable[None]]
T = TypeVar("T")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DurablePolicy:
    refuse_without_log: bool = False  # new streams, where the log fails; else they begin without it
    tick_seconds: float = 1.0  # between looks at what other processes left
    poll_seconds: float = 0.1  # between reads of a stream that another process runs
    patience_seconds: float = 30.0  # how long a reader waits for a log that does not answer
    keep_seconds: float = 600.0  # an ended stream that the log does not take is kept in memory for so long
    ticks_between_trims: int = 10


@dataclass(slots=True)
class _Run:
    """`live` is there once the prompts are admitted; `opening` is what `start` waits for."""

    opening: asyncio.Future[Admitted] | None = None
    live: LiveGeneration | None = None

    def refuse(self, error: WeftError) -> None:
        if self.opening is not None and not self.opening.done():
            self.opening.set_exception(error)


class DurableGenerations:
    """`resume(admitted, past)` gives the events that follow the past ones; `count` is told what happens, in words that
    a metric has as its label."""

    def __init__(
        self,
        log: GenerationLog,
        resume: Callable[[Admitted, Sequence[LoggedEvent]], Events],
        policy: DurablePolicy | None = None,
        count: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._log = log
        self._resume = resume
        self._policy = policy or DurablePolicy()
        self._count = count
        self._lives: dict[str, LiveGeneration] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.Task[None]] = set()
        self._writer = CarefulWriter(log, refuse=self._policy.refuse_without_log, count=count, on_lost=self._lose)
        self._touched: dict[str, float] = {}  # streams that other processes run and that are read here
        self._ticks = 0
        self._retired = False
        self._parting = False

    @property
    def log(self) -> GenerationLog:
        return self._log

    @property
    def running(self) -> tuple[str, ...]:
        """The streams that this process generates."""
        return tuple(name for name, live in self._lives.items() if not live.ended)

    async def start(
        self, events: Callable[[Opened], Events], describe: Callable[[tuple[PreparedPrompt, ...]], Admitted]
    ) -> Admitted:
        """Runs `events`, which calls what it is given once its prompts are admitted, and describes the entry.

        Raises what `events` raises before that; StreamLogError where the log fails and the policy is to refuse.
        """
        opening: asyncio.Future[Admitted] = asyncio.get_running_loop().create_future()
        run = _Run(opening)

        async def opened(prompts: tuple[PreparedPrompt, ...]) -> None:
            live = LiveGeneration(describe(prompts))
            await self._writer.create(live)
            live.task = task
            run.live = live
            self._begin(live)
            self._count("started")
            if not opening.cancelled():
                opening.set_result(live.admitted)

        task = self._spawn(self._generate(run, events(opened)))
        try:
            return await opening
        except asyncio.CancelledError:
            if run.live is None:
                task.cancel()
            raise

    async def find(self, stream_id: str, owner: str) -> Admitted:
        """Raises NotFoundError, also where it is another's."""
        live = self._lives.get(stream_id)
        if live is not None:
            admitted = live.admitted
        else:
            data = await self._log.admitted(stream_id)
            if data is None:
                raise _not_found()
            admitted = _decoded(data)
        if admitted.owner != owner:
            raise _not_found()
        return admitted

    async def follow(self, stream_id: str) -> Events:
        """Its events from the first on, until it has ended. Raises the failure that ended it; NotFoundError;
        EngineUnavailableError (`stream_moved`) where this process stops and leaves it to another."""
        position = 0
        while True:
            async with aclosing(self._records(stream_id, position)) as records:
                async for record in records:
                    position += 1
                    event = decode_record(record)
                    if event is None:
                        return
                    yield event
            if self._parting:
                raise EngineUnavailableError("this server is stopping, and another goes on with the stream", code=MOVED)

    def notice(self, stream_id: str) -> str | None:
        """Why this stream would not survive this process now; None: it would, as far as the log does."""
        live = self._lives.get(stream_id)
        return None if live is None else live.undurable

    async def cancel(self, stream_id: str) -> bool:
        """Ends it, whichever process runs it. What has ended stays as it is, and is False."""
        live = self._lives.get(stream_id)
        if live is None:
            return await self._log.cancel(stream_id)
        live.stop(_cancelled())
        return not live.ended

    def abandon(self, stream_id: str) -> None:
        """Ends one whose only client left before it knew the id: nobody else can read it."""
        live = self._lives.get(stream_id)
        if live is not None:
            live.stop(_cancelled())

    async def run(self) -> None:
        """For ever: takes up what nobody holds, hears what other processes ask, mends and trims the log."""
        while True:
            try:
                await self.tick()
            except Exception as error:  # a stream that cannot be taken up must not end the keeping of all others
                log_failure(logger, "keeping durable streams failed", error)
            await asyncio.sleep(self._policy.tick_seconds)

    async def tick(self) -> None:
        try:
            signals = await self._log.signals()
            for stream_id, signal in signals.items():
                self._heed(stream_id, signal.cancelled, signal.reads)
            if not self._retired:
                # Those that are held and do not run were claimed when the log failed.
                for stream_id in [*await self._log.claim(), *(name for name in signals if name not in self._lives)]:
                    await self._take_up(stream_id)
            for live in [live for live in self._lives.values() if live.undurable is not None]:
                await self._mend(live)
            if self._ticks % self._policy.ticks_between_trims == 0:
                await self._log.trim()
            self._ticks += 1
        except StreamLogError as error:
            self._writer.note_failure(error)
        else:
            self._writer.note_success()
        oldest = time.monotonic() - self._policy.keep_seconds
        for live in [live for live in self._lives.values() if live.ended_at is not None and live.ended_at < oldest]:
            self._lives.pop(live.stream_id)
        self._touched = {name: at for name, at in self._touched.items() if at > time.monotonic() - _TOUCH_SECONDS}

    def retire(self) -> None:
        """Takes up nothing more that others left; what runs goes on."""
        self._retired = True

    async def hand_over(self) -> None:
        """Leaves what runs to other processes where they can see the log; else it ends as a server that stops ends
        it. Nothing can be started afterwards."""
        self._retired = self._parting = True
        lives = [live for live in self._lives.values() if not live.ended and live.undurable is None]
        if self._log.shared:
            for live in lives:
                live.part()
                self._count("handed_over")
        await self._end_tasks()
        if self._log.shared and lives:
            log_event(logger, "streams were left to another process", streams=len(lives))
            try:
                await self._log.release([live.stream_id for live in lives])
            except StreamLogError as error:
                self._writer.note_failure(error)

    async def close(self) -> None:
        await self._end_tasks()
        await self._log.close()

    async def _end_tasks(self) -> None:
        own = {live.task for live in self._lives.values()}
        for live in self._lives.values():
            live.stop(_stopping())
        for task in self._tasks - own:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*self._writers, return_exceptions=True)

    async def _records(self, stream_id: str, after: int) -> AsyncGenerator[bytes, None]:
        """From the generation that runs here, or from the log; ends where it may have changed places."""
        live = self._lives.get(stream_id)
        if live is not None:
            with live.reading():
                async with aclosing(live.follow(after)) as records:
                    async for record in records:
                        yield record
            return
        page = await self._patiently(lambda: self._log.read(stream_id, after))
        if page is None:
            raise _not_found()
        for record in page.records:
            yield record
        if not page.records:
            await self._touch(stream_id)
            await asyncio.sleep(self._policy.poll_seconds)

    async def _touch(self, stream_id: str) -> None:
        now = time.monotonic()
        if now - self._touched.get(stream_id, -math.inf) >= _TOUCH_SECONDS:
            self._touched[stream_id] = now
            await self._patiently(lambda: self._log.touch(stream_id))

    async def _patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        deadline = time.monotonic() + self._policy.patience_seconds
        while True:
            try:
                return await ask()
            except StreamLogError:
                if time.monotonic() >= deadline:
                    raise
            await asyncio.sleep(self._policy.tick_seconds)

    async def _mend(self, live: LiveGeneration) -> None:
        await self._writer.mend(live)
        if live.ended and live.undurable is None:
            self._lives.pop(live.stream_id, None)

    def _lose(self, live: LiveGeneration) -> None:
        """Another process runs it: readers go on from the log."""
        self._lives.pop(live.stream_id, None)
        live.part()
        self._count("lost_to_another")

    def _heed(self, stream_id: str, cancelled: bool, reads: int) -> None:
        live = self._lives.get(stream_id)
        if live is None:
            return
        if cancelled:
            live.stop(_cancelled())
        if reads != live.reads_elsewhere:
            live.reads_elsewhere = reads
            live.await_reader()

    async def _take_up(self, stream_id: str) -> None:
        data, page = await self._log.admitted(stream_id), await self._log.read(stream_id, 0)
        if data is None or page is None or page.ended or stream_id in self._lives:
            return
        try:
            admitted = _decoded(data)
            past = past_events(page.records)
        except (WeftError, msgspec.MsgspecError):
            log_event(logger, "a stream of the log cannot be read", level=logging.ERROR, code=LOG_UNREADABLE)
            self._count("unreadable")
            with contextlib.suppress(NotHeldError):  # then somebody who can read it has it
                await self._log.append(stream_id, len(page.records), [encode_end(_unreadable())], ended=True)
            return
        live = LiveGeneration(admitted, page.records)
        self._begin(live)
        self._count("taken_up")
        log_event(logger, "stream taken up", request_id=admitted.request_id, events=len(past))
        live.task = self._spawn(self._generate(_Run(live=live), self._resume(admitted, past)))

    async def _generate(self, run: _Run, events: Events) -> None:
        """Adds the events and the end to what is written."""
        failure: WeftError | None = None
        try:
            async with aclosing(events):
                async for event in events:
                    assert run.live is not None
                    run.live.add(encode_event(event))
        except asyncio.CancelledError:
            failure = None if run.live is None or run.live.parted else run.live.stop_reason
            if failure is None:
                run.refuse(_stopping())
                if run.live is not None:
                    run.live.part()
                raise
        except WeftError as error:
            failure = error
        except Exception as error:  # told to readers without its text, and logged
            log_failure(logger, "a durable stream failed", error)
            failure = InternalError()
        if run.live is None:
            run.refuse(failure or EngineError("the generation ended before it began"))
            return
        run.live.add(encode_end(failure), ended=True)
        self._count("ended" if failure is None else "failed")

    async def _write(self, live: LiveGeneration) -> None:
        await self._writer.write(live)
        if live.ended and live.undurable is None:
            self._lives.pop(live.stream_id, None)

    def _begin(self, live: LiveGeneration) -> None:
        self._lives[live.stream_id] = live
        live.await_reader()
        self._writers.add(writing := asyncio.create_task(self._write(live)))
        writing.add_done_callback(self._writers.discard)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _decoded(data: bytes) -> Admitted:
    try:
        return decode_admitted(data)
    except msgspec.MsgspecError:
        raise _unreadable() from None


def _unreadable() -> EngineError:
    """Whoever asks again reads it no better, so this is no StreamLogError."""
    return EngineError("this stream was written by another version of the server", code=LOG_UNREADABLE)


def _stopping() -> EngineUnavailableError:
    return EngineUnavailableError("the server is stopping; ask again", code="server_stopping")


def _cancelled() -> StreamCancelledError:
    return StreamCancelledError("the stream was cancelled", code="stream_cancelled")


def _not_found() -> NotFoundError:
    return NotFoundError("there is no such stream, or it is no longer kept", param="stream_id", code="stream_not_found")
