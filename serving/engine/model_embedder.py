"""Texts that the served model embeds: each a prompt in the engine's own batches, of the batch class.

So many at once as the engine has rows twice over: those that run, and as many that take their places. Requests take
turns, text by text. What waits here takes no room in the engine's queue.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

import numpy as np

from serving.engine.embedding import EmbedRequest, refuse_unreadable
from serving.engine.embedding_queue import MOST_WAITING_TOKENS
from serving.engine.request import GenerateRequest, Pooling, Priority, SamplingParams
from serving.engine.text_model import TextModel
from serving.errors import OverloadedError

_RETRY_SECONDS = 5.0  # while it is not known how fast texts are embedded
_READ = SamplingParams(temperature=0.0, max_tokens=0)

VectorOf = Callable[[GenerateRequest, Pooling], Awaitable[np.ndarray]]


class ModelEmbedder:
    """Implements `Embedder`, for one event loop."""

    def __init__(
        self, vector_of: VectorOf, model: TextModel, most_at_once: int, now: Callable[[], float] = time.monotonic
    ) -> None:
        """`vector_of` has a prompt read, and gives its vector [D] float32."""
        self._vector_of = vector_of
        self._model = model
        self._turns = asyncio.Semaphore(most_at_once)
        self._now = now
        self._waiting_tokens = 0  # of texts that have no vector yet
        self._tokens_per_second: float | None = None  # of the newest request

    @property
    def waiting_tokens(self) -> int:
        return self._waiting_tokens

    async def embed(self, request: EmbedRequest) -> np.ndarray:
        refuse_unreadable(request.texts, self._model.facts)
        self._refuse_overload(request.tokens)
        vectors = np.empty((len(request.texts), self._model.facts.dimensions), np.float32)
        self._waiting_tokens += request.tokens
        left, begin = [request.tokens], self._now()

        async def one(place: int) -> None:
            vectors[place] = await self._vector_of(_prompt_of(request, place), self._model.pooling)
            self._waiting_tokens -= len(request.texts[place])
            left[0] -= len(request.texts[place])

        try:
            async with asyncio.TaskGroup() as group:
                for place in range(len(request.texts)):
                    await self._turns.acquire()
                    # Not in `one`, which never begins where its group has failed before.
                    group.create_task(one(place)).add_done_callback(lambda _: self._turns.release())
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        finally:
            self._waiting_tokens -= left[0]
        self._tokens_per_second = request.tokens / max(self._now() - begin, 1e-6)
        return vectors

    def _refuse_overload(self, tokens: int) -> None:
        if self._waiting_tokens and self._waiting_tokens + tokens > MOST_WAITING_TOKENS:
            rate = self._tokens_per_second
            raise OverloadedError(
                "too many texts wait to be embedded",
                retry_after=_RETRY_SECONDS if rate is None else self._waiting_tokens / rate,
                code="embedding_queue_full",
            )


def _prompt_of(request: EmbedRequest, place: int) -> GenerateRequest:
    return GenerateRequest(
        request_id=f"{request.request_id}/text-{place}",
        prompt_token_ids=request.texts[place],
        sampling=_READ,
        priority=Priority.BATCH,
        tenant=request.tenant,
        tenant_weight=request.tenant_weight,
        cache_salt=request.cache_salt,
    )
