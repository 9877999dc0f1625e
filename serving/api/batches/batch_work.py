"""One batch, from the state in which it is found to its end."""

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from itertools import chain

import msgspec

from serving.api.batches.batch import Batch, Status
from serving.api.batches.batch_lines import Line, LineReader
from serving.api.batches.batch_store import BatchStore, counted, forget_results, results
from serving.api.batches.line_work import answered, unanswered
from serving.api.files.file_store import MADE_HERE, FileStore, StoredFile, new_file_id
from serving.api.service import Service
from serving.facts_file import on_disk
from serving.gateway.principal import Principal

replace = msgspec.structs.replace


class BatchWork:
    """Cancelling `run` leaves the batch as it is, for whoever goes on with it."""

    def __init__(
        self,
        service: Service,
        store: BatchStore,
        files: FileStore,
        batch: Batch,
        *,
        max_lines: int,
        max_line_bytes: int,
        slots: asyncio.Semaphore,
        max_lines_begun: int,
    ) -> None:
        """`slots` are the lines that may run at once, of all batches; `max_lines_begun` those of this one that run or
        wait to."""
        self._service = service
        self._store = store
        self._files = files
        self._batch = batch
        self._max_lines = max_lines
        self._reader = LineReader(files.path(batch.input_file_id), batch.endpoint, max_line_bytes)
        self._slots = slots
        self._begun = asyncio.Semaphore(max_lines_begun)
        self._lines: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Raises OverloadedError where the disk fails; it may be run again."""
        if self._batch.status == "validating":
            await self._validate()
        if self._batch.status == "in_progress":
            await self._run_lines()
            await self._change(_to_finalizing(self._now()))
        if self._batch.status in ("finalizing", "cancelling"):
            await self._finalize()

    def interrupt(self) -> None:
        """Its lines end here; what follows from that is done."""
        if self._lines is not None:
            self._lines.cancel()

    async def _validate(self) -> None:
        total, faults = await on_disk(lambda: self._reader.faults(self._max_lines))
        now = self._now()

        def decide(batch: Batch) -> Batch:
            if batch.status != "validating":  # cancelled meanwhile
                return batch
            if faults:
                return replace(batch, status="failed", failed_at=now, faults=tuple(faults))
            return replace(batch, status="in_progress", in_progress_at=now, total=total)

        await self._change(decide)

    async def _run_lines(self) -> None:
        """Those that are not done, until the batch expires or is interrupted."""
        done = await self._store.lines_done(self._batch.id)
        todo = (line for line in self._reader.lines() if line.number not in done)
        self._lines = asyncio.ensure_future(self._all(todo))
        try:
            async with asyncio.timeout(max(0.0, self._batch.expires_at - self._service.now())):
                await asyncio.wait((self._lines,))
        except TimeoutError:
            return
        finally:
            self._lines.cancel()
            await asyncio.gather(self._lines, return_exceptions=True)
        if not self._lines.cancelled():
            self._lines.result()

    async def _all(self, todo: Iterator[Line]) -> None:
        principal = msgspec.msgpack.decode(self._batch.principal, type=Principal)
        async with asyncio.TaskGroup() as running:
            while True:
                await self._begun.acquire()
                line = await on_disk(lambda: next(todo, None))
                if line is None:
                    return
                running.create_task(self._answer(principal, line)).add_done_callback(lambda _: self._begun.release())

    async def _answer(self, principal: Principal, line: Line) -> None:
        record, good = await answered(self._service, principal, self._batch.endpoint, line, self._slots)
        await self._store.record(self._batch.id, line.number, record, good=good)

    async def _finalize(self) -> None:
        """The files and the end are one transaction."""
        now = self._now()
        batch = self._batch
        expired = batch.status == "finalizing" and batch.expired_at is not None
        done = await self._store.lines_done(batch.id) if expired else set[int]()

        def end(connection: sqlite3.Connection) -> Batch:
            completed, failed = counted(connection, batch.id)
            errors: Iterator[bytes] = results(connection, batch.id, good=False)
            if expired:
                errors = chain(errors, self._expired_lines(done))
            missed = batch.total - len(done) if expired else 0
            if completed:
                good = results(connection, batch.id, good=True)
                self._files.put(connection, batch.tenant, self._made(batch.output_file_id, "output", now), good)
            if failed or missed:
                self._files.put(connection, batch.tenant, self._made(batch.error_file_id, "errors", now), errors)
            forget_results(connection, batch.id)

            def ended(batch: Batch) -> Batch:
                status, field = _end_of(batch)
                return replace(
                    batch,
                    status=status,
                    completed=completed,
                    failed=failed + missed,
                    output_file_id=batch.output_file_id if completed else None,
                    error_file_id=batch.error_file_id if failed or missed else None,
                    **{field: now},
                )

            return self._store.changed(connection, batch.id, ended)

        if batch.output_file_id is None:  # chosen before anything is written, so that a second try writes no second one
            await self._change(lambda b: replace(b, output_file_id=new_file_id(), error_file_id=new_file_id()))
            batch = self._batch
        self._batch = await self._store.facts.run(end)

    def _expired_lines(self, done: set[int]) -> Iterator[bytes]:
        for line in self._reader.lines():
            if line.number not in done:
                yield unanswered(line, "batch_expired", "the batch expired before this request was run") + b"\n"

    def _made(self, file_id: str | None, word: str, now: int) -> StoredFile:
        assert file_id is not None
        name = f"{self._batch.id}_{word}.jsonl"
        seconds = self._batch.output_seconds
        return StoredFile(
            id=file_id,
            filename=name,
            purpose=MADE_HERE,
            bytes=0,
            created_at=now,
            expires_at=seconds and now + seconds,
        )

    async def _change(self, change: Callable[[Batch], Batch]) -> None:
        self._batch = await self._store.change(self._batch.id, change)

    def _now(self) -> int:
        return int(self._service.now())


def _to_finalizing(now: int) -> Callable[[Batch], Batch]:
    def change(batch: Batch) -> Batch:
        if batch.status != "in_progress":  # cancelled meanwhile
            return batch
        expired = now if now >= batch.expires_at else None
        return replace(batch, status="finalizing", finalizing_at=now, expired_at=expired)

    return change


def _end_of(batch: Batch) -> tuple[Status, str]:
    """The last status, and the field that says when."""
    if batch.status == "cancelling":
        return "cancelled", "cancelled_at"
    return ("expired", "expired_at") if batch.expired_at is not None else ("completed", "completed_at")
