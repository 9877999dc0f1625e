"""Texts that wait for the encoder: a queue beside the scheduler's, which yields to it.

A batch runs between two steps of the engine's loop, on the loop's thread, and is small. While streams are open the next
one waits until the loop has had `STEPS_TO_TEXTS` times as long for itself: embedding takes a fifth of the time at most,
and never stands still.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from serving.engine.embedding import EmbedRequest, TextFacts, Texts, refuse_unreadable
from serving.errors import EngineError, OverloadedError, WeftError

STEPS_TO_TEXTS = 4.0
MOST_WAITING_TOKENS = 600_000  # two of the largest requests; one is taken in any case
_RETRY_SECONDS = 5.0  # while it is not known how fast the encoder is
_MEMORY = 0.2  # weight of the newest batch in the encoder's rate

log = logging.getLogger(__name__)

Work = Callable[[], np.ndarray]


class TextEncoder(Protocol):
    @property
    def facts(self) -> TextFacts: ...

    @property
    def batch_sizes(self) -> Mapping[int, int]:
        """How many texts of at most so many tokens go together; by length, shortest first."""
        ...

    def encode(self, texts: Sequence[tuple[int, ...]]) -> np.ndarray:
        """[texts, D] float32, of texts that fit one batch."""
        ...


class EmbeddingQueue:
    """Implements `Embedder`, for one event loop."""

    def __init__(
        self,
        encoder: TextEncoder,
        between_steps: Callable[[Work], Awaitable[np.ndarray]],
        is_generating: Callable[[], bool],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`between_steps` runs work where nothing else uses the device."""
        self._encoder = encoder
        self._between_steps = between_steps
        self._is_generating = is_generating
        self._sleep = sleep
        self._now = now
        self._jobs: deque[_Job] = deque()  # those with texts that are in no batch yet
        self._waiting_tokens = 0  # of those texts
        self._tokens_per_second: float | None = None
        self._batch_seconds = 0.0  # of the newest batch
        self._worker: asyncio.Task[None] | None = None

    @property
    def waiting_tokens(self) -> int:
        return self._waiting_tokens

    async def embed(self, request: EmbedRequest) -> np.ndarray:
        self._check(request)
        job = _Job(request.texts, self._encoder.facts.dimensions)
        self._jobs.append(job)
        self._waiting_tokens += request.tokens
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        try:
            return await job.answer
        finally:
            self._drop(job)

    def _check(self, request: EmbedRequest) -> None:
        refuse_unreadable(request.texts, self._encoder.facts)
        if self._waiting_tokens and self._waiting_tokens + request.tokens > MOST_WAITING_TOKENS:
            rate = self._tokens_per_second
            raise OverloadedError(
                "too many texts wait to be embedded",
                retry_after=_RETRY_SECONDS if rate is None else self._waiting_tokens / rate,
                code="embedding_queue_full",
            )

    async def _work(self) -> None:
        while self._jobs:
            batch = self._next_batch()
            texts = [job.texts[place] for job, place in batch]
            try:
                vectors = await self._between_steps(lambda texts=texts: self._encode(texts))
            except WeftError as error:
                for job, _ in batch:
                    job.fail(error)
                    self._drop(job)
                continue
            for (job, place), vector in zip(batch, vectors, strict=True):
                job.put(place, vector)
            if self._is_generating():
                await self._sleep(STEPS_TO_TEXTS * self._batch_seconds)

    def _encode(self, texts: list[tuple[int, ...]]) -> np.ndarray:
        """On the loop's thread, which a failure of the encoder's must not end."""
        begin = self._now()
        try:
            vectors = self._encoder.encode(texts)
        except Exception as error:
            log.exception("the encoder failed")
            raise EngineError("the encoder failed on these texts", code="encoder_failed") from error
        self._batch_seconds = self._now() - begin
        self._learn(sum(map(len, texts)))
        return vectors

    def _learn(self, tokens: int) -> None:
        if self._batch_seconds > 0:
            rate, known = tokens / self._batch_seconds, self._tokens_per_second
            self._tokens_per_second = rate if known is None else known + _MEMORY * (rate - known)

    def _next_batch(self) -> "list[tuple[_Job, int]]":
        """Texts of about one length, the first of them of the request whose turn it is; another's turn is next."""
        length = self._padded(self._jobs[0].next_length)
        batch: list[tuple[_Job, int]] = []
        for job in self._jobs:
            while job.pending and len(batch) < self._encoder.batch_sizes[length]:
                if self._padded(job.next_length) != length:
                    break
                batch.append((job, job.pending.popleft()))
        self._waiting_tokens -= sum(len(job.texts[place]) for job, place in batch)
        self._jobs.rotate(-1)
        self._jobs = deque(job for job in self._jobs if job.pending)
        return batch

    def _padded(self, tokens: int) -> int:
        return next(length for length in self._encoder.batch_sizes if length >= tokens)

    def _drop(self, job: "_Job") -> None:
        """What of it is in no batch yet."""
        self._waiting_tokens -= sum(len(job.texts[place]) for place in job.pending)
        job.pending.clear()
        if job in self._jobs:
            self._jobs.remove(job)


class _Job:
    """One request's texts, and the vectors that have come."""

    def __init__(self, texts: Texts, dimensions: int) -> None:
        self.texts = texts
        self.pending = deque(sorted(range(len(texts)), key=lambda place: len(texts[place])))
        self.answer: asyncio.Future[np.ndarray] = asyncio.get_running_loop().create_future()
        self._vectors = np.empty((len(texts), dimensions), np.float32)
        self._missing = len(texts)

    @property
    def next_length(self) -> int:
        return len(self.texts[self.pending[0]])

    def put(self, place: int, vector: np.ndarray) -> None:
        self._vectors[place] = vector
        self._missing -= 1
        if not self._missing and not self.answer.done():
            self.answer.set_result(self._vectors)

    def fail(self, error: WeftError) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)
