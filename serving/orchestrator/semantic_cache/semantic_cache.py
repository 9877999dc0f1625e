"""Answers that serve again: what is asked of them, and what a shadow finds of those that it would have served."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import monotonic

import numpy as np
from prometheus_client import CollectorRegistry

from serving.engine.client import Engine
from serving.errors import WeftError
from serving.generation.request import PreparedPrompt, TextRequest
from serving.generation.text_embedder import TextEmbedder
from serving.observability.logs import log_failure
from serving.orchestrator.semantic_cache.answer import Answer
from serving.orchestrator.semantic_cache.cache_metrics import SemanticCacheMetrics
from serving.orchestrator.semantic_cache.entries import Entries, Match
from serving.orchestrator.semantic_cache.question import Question, is_single_turn, question_of
from serving.orchestrator.text_vectors import answer_similarity, question_vector
from serving.settings.semantic_cache import CacheMode, SemanticCacheConfig

_MOST_COMPARING = 64  # shadows at once; others are not compared

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What a question found, and by what its own answer can be kept."""

    question: Question
    vector: np.ndarray | None  # None: the very same text was found
    match: Match | None


class SemanticCache:
    """Of one API process. `encoder` as the engine has it: questions and answers are encoded on nobody's account."""

    def __init__(
        self,
        config: SemanticCacheConfig,
        encoder: TextEmbedder,
        engine: Engine,
        registry: CollectorRegistry,
        *,
        now: Callable[[], float] = monotonic,
    ) -> None:
        self._config = config
        self._encoder = encoder
        self._engine = engine
        self._metrics = SemanticCacheMetrics(registry)
        self._entries = Entries(
            dimensions=encoder.facts.dimensions,
            most=config.max_entries,
            most_bytes=config.max_bytes,
            tenant_share=config.share,
            lifetime=config.lifetime_seconds,
            now=now,
        )
        self._weights = ""
        self._era = 0
        self._comparing: set[asyncio.Task[None]] = set()
        self._metrics.entries.set_function(lambda: len(self._entries))
        self._metrics.bytes.set_function(lambda: self._entries.bytes)

    @property
    def size(self) -> tuple[int, int]:
        """Entries, and their bytes."""
        return len(self._entries), self._entries.bytes

    @property
    def era(self) -> int:
        """It ends whenever answers are dropped, of whichever tenant: what others were being answered is not kept
        either, which costs them a miss."""
        return self._era

    def mode_of(self, tenant: str) -> CacheMode:
        return self._config.tenants.get(tenant, self._config.mode)

    def takes(self, request: TextRequest, prepared: PreparedPrompt) -> bool:
        return is_single_turn(request, self._config.max_temperature, prepared.sampling.temperature)

    async def look(self, request: TextRequest, prepared: PreparedPrompt, tenant: str, most_tokens: int) -> Look | None:
        """For a request that it `takes`; answers of more than `most_tokens` are not found. None where nothing can be
        said, and nothing kept: the encoder fails or takes too long, the text is too long for it, or the weights have no
        version."""
        outcome, look = "failed", None
        try:
            async with asyncio.timeout(self._config.timeout_seconds):
                outcome, look = await self._looked(request, prepared, tenant, most_tokens)
        except (WeftError, TimeoutError) as error:
            log_failure(logger, "semantic cache: a question was not looked up", error)
        self._metrics.lookups.labels(self.mode_of(tenant), outcome).inc()
        return look

    def keep(self, look: Look, answer: Answer, era: int) -> None:
        """For later questions, where it is of the weights that were asked, and nothing was dropped since `era`, in
        which the request came: what is erased would be there again."""
        if look.vector is not None and answer.weights == look.question.weights and era == self._era:
            self._entries.add(look.question, look.vector, answer)

    def compare(
        self, request: TextRequest, prepared: PreparedPrompt, tenant: str, most_tokens: int, fresh: Answer, era: int
    ) -> None:
        """Beside what goes on: what would have been served, held against the answer that was given. `era` as of
        `keep`."""
        if len(self._comparing) >= _MOST_COMPARING:
            self._metrics.lookups.labels(self.mode_of(tenant), "skipped").inc()
            return
        task = asyncio.create_task(self._compared(request, prepared, tenant, most_tokens, fresh, era))
        self._comparing.add(task)
        task.add_done_callback(self._comparing.discard)

    async def settled(self) -> None:
        """Once what is being compared has been."""
        await asyncio.gather(*self._comparing, return_exceptions=True)

    def drop(self, tenant: str | None = None) -> int:
        """All answers, or those of a tenant. How many they were."""
        self._era += 1
        return self._entries.drop(tenant)

    async def erase(self, tenant: str, dry_run: bool) -> Mapping[str, int]:
        """What there is of a tenant; unless it is only looked at, it is gone."""
        return {"answers": self._entries.count(tenant) if dry_run else self.drop(tenant)}

    async def close(self) -> None:
        for task in self._comparing:
            task.cancel()
        await self.settled()

    async def _looked(
        self, request: TextRequest, prepared: PreparedPrompt, tenant: str, most_tokens: int
    ) -> tuple[str, Look | None]:
        weights = (await self._engine.stats()).weights
        if not weights:
            return "unversioned", None
        if weights != self._weights:
            self._entries.drop_other_weights(weights)
            self._weights = weights
        question = question_of(request, prepared, tenant=tenant, weights=weights)
        vector, match = None, self._entries.same(question)
        if match is None:
            vector = await question_vector(self._encoder, question.text)
            if vector is None:
                return "too_long", None
            match = self._entries.nearest(question, vector, self._config.threshold)
        if match is not None and len(match.answer.token_ids) > most_tokens:
            match = None
        return "miss" if match is None else "hit", Look(question=question, vector=vector, match=match)

    async def _compared(
        self, request: TextRequest, prepared: PreparedPrompt, tenant: str, most_tokens: int, fresh: Answer, era: int
    ) -> None:
        look = await self.look(request, prepared, tenant, most_tokens)
        if look is None:
            return
        if look.match is None:
            self.keep(look, fresh, era)
            return
        try:
            similarity = await answer_similarity(self._encoder, look.match.answer.text, fresh.text)
        except WeftError as error:
            log_failure(logger, "semantic cache: two answers were not compared", error)
            self._metrics.shadow_hits.labels("failed").inc()
            return
        self._metrics.shadow_similarity.observe(similarity)
        agreed = similarity >= self._config.answer_threshold
        self._metrics.shadow_hits.labels("agreed" if agreed else "differed").inc()
