"""Batches without a server: lines of JSON in, lines of JSON out, through the same checks as the HTTP API.

A line is the body of a chat completion (`messages`) or a text completion (`prompt`, or `prompt_token_ids`), with an
optional `id`. Its record has the id and what the API would answer (`choices`, `usage`), or an `error` that names the
line and the field. Records come in the order of completion.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Container, Iterable, Iterator
from typing import Any

import msgspec

from serving.api.caller import Caller
from serving.api.chat_body import ChatBody
from serving.api.chat_reply import ChatReply
from serving.api.completion_body import CompletionBody
from serving.api.completion_reply import CompletionReply
from serving.api.error_reply import error_object
from serving.api.resumed_generation import resumed_events
from serving.api.service import ModelCard, Service
from serving.api.stream_slots import StreamSlots
from serving.api.strict_json import json_type, parse_object
from serving.api.typed_body import typed
from serving.errors import EngineUnavailableError, OverloadedError, RequestError, UnsupportedError, WeftError
from serving.generation.generator import Generator
from serving.generation.validation import MAX_CHOICES
from serving.observability.metrics import Metrics
from serving.sessions.durable_generations import DurableGenerations
from serving.sessions.generation_log_memory import MemoryGenerationLog

RecordId = str | int
Record = dict[str, Any]
_PROMPTS = ("messages", "prompt", "prompt_token_ids")
_KEPT = ("choices", "usage", "prompt_logprobs", "prompt_token_ids")
# The queue is full of this batch's own lines, and one of them ends sooner or later. Where none does for so long, what
# refuses a line will not pass by waiting: more choices than the queue holds, a grammar process that cannot start.
PATIENCE_SECONDS = 600.0


class BatchGenerator:
    """`concurrency` requests are open at once: enough that the engine's queue never runs dry."""

    def __init__(
        self, generator: Generator, *, concurrency: int = 256, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._concurrency = concurrency
        self._now = now
        self._answered_at = now()  # the last line, or the begin
        metrics = Metrics(generator.model_name)
        self._service = Service(
            generator=generator,
            engine=generator.engine,
            metrics=metrics,
            slots=StreamSlots(concurrency * MAX_CHOICES),
            card=ModelCard(name=generator.model_name, created=0, max_model_len=generator.max_model_len),
            durable=DurableGenerations(
                MemoryGenerationLog(), lambda admitted, past: resumed_events(self._service, admitted, past)
            ),
        )

    async def run(self, lines: Iterable[bytes], skip: Container[RecordId] = ()) -> AsyncGenerator[Record, None]:
        """One record for each line that is not blank and whose id is not in `skip`. A line without an id has its number
        (from 1) as one. Lines are read as they are needed.

        Raises EngineUnavailableError where the engine is lost; what was not yielded is to be run again.
        """
        source = self._wanted(lines, skip)
        self._answered_at = self._now()
        records: asyncio.Queue[Record | Exception | None] = asyncio.Queue(maxsize=self._concurrency)
        workers = [asyncio.create_task(self._work(source, records)) for _ in range(self._concurrency)]
        try:
            running = len(workers)
            while running:
                record = await records.get()
                if isinstance(record, Exception):
                    raise record
                if record is None:
                    running -= 1
                else:
                    yield record
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    async def _work(
        self, source: "Iterator[_Line | Record]", records: asyncio.Queue[Record | Exception | None]
    ) -> None:
        try:
            for line in source:
                await records.put(await self._record(line) if isinstance(line, _Line) else line)
            await records.put(None)
        except Exception as error:
            await records.put(error)

    def _wanted(self, lines: Iterable[bytes], skip: Container[RecordId]) -> "Iterator[_Line | Record]":
        """The lines to run; a record where a line cannot be read."""
        seen: set[RecordId] = set()
        for number, raw in enumerate(lines, start=1):
            if not raw.strip():
                continue
            record_id: RecordId | None = None
            try:
                line = _parse(raw, number)
                record_id = line.id
                if record_id in seen:
                    raise RequestError(f"id {record_id!r} was used by an earlier line", param="id", code="duplicate_id")
            except RequestError as error:
                yield _failure(record_id, number, error)
                continue
            seen.add(record_id)
            if record_id not in skip:
                yield line

    async def _record(self, line: "_Line") -> Record:
        """A line that is refused waits for as long as others are answered, and PATIENCE_SECONDS after the last."""
        while True:
            try:
                answer = msgspec.json.decode(await self._reply(line).whole())
                self._answered_at = self._now()
                return {"id": line.id, **{key: answer[key] for key in _KEPT if key in answer}}
            except OverloadedError as error:
                if self._now() - self._answered_at >= PATIENCE_SECONDS:
                    return _failure(line.id, line.number, error)
                await asyncio.sleep(error.retry_after)
            except EngineUnavailableError:
                raise
            except WeftError as error:
                return _failure(line.id, line.number, error)

    def _reply(self, line: "_Line") -> ChatReply | CompletionReply:
        """Raises RequestError for anything that the API would refuse."""
        kind = ChatBody if "messages" in line.table else CompletionBody
        body = typed(kind, line.table)
        if body.stream:
            raise UnsupportedError("stream is not supported in a batch: a record is whole", param="stream")
        self._service.check_model(body.model)
        body.check_together()
        request_id = f"batch-{secrets.token_hex(8)}"
        if isinstance(body, ChatBody):
            return ChatReply(self._service, body, Caller(request_id=request_id))
        return CompletionReply(self._service, body, Caller(request_id=request_id))


class _Line(msgspec.Struct, frozen=True):
    number: int
    id: RecordId
    table: dict[str, Any]  # without the id


def _parse(raw: bytes, number: int) -> _Line:
    table = parse_object(raw)
    record_id = table.pop("id", number)
    if not isinstance(record_id, str | int) or isinstance(record_id, bool) or record_id == "":
        raise RequestError(f"id must be a string or an integer, not {json_type(record_id)}", param="id")
    given = [name for name in _PROMPTS if name in table]
    if len(given) != 1:
        found = " and ".join(given) or "none of them"
        raise RequestError(
            f"a line has exactly one of {', '.join(_PROMPTS)}; this one has {found}",
            param=given[0] if given else "prompt",
        )
    if given == ["prompt"] and not isinstance(table["prompt"], str):
        raise RequestError(
            "prompt must be one string; token ids go into prompt_token_ids, and more prompts into more lines",
            param="prompt",
        )
    if given == ["prompt_token_ids"]:
        ids = table.pop("prompt_token_ids")
        if not isinstance(ids, list) or not ids or any(type(token) is not int for token in ids):
            raise RequestError(
                "prompt_token_ids must be a list of integers that is not empty", param="prompt_token_ids"
            )
        table["prompt"] = ids
    return _Line(number, record_id, table)


def _failure(record_id: RecordId | None, number: int, error: WeftError) -> Record:
    return {"id": record_id, "line": number, **error_object(error)}
