"""Canary prompts asked of the server while it serves, one every so often, so that they are no load."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from prometheus_client import CollectorRegistry

from serving.errors import WeftError
from serving.events.event_log import EventLog
from serving.events.event_types import CanaryScored
from serving.generation.text_embedder import TextEmbedder
from serving.observability.logs import log_event, log_failure
from serving.orchestrator.quality_watch.canary import Canary
from serving.orchestrator.quality_watch.watch_metrics import QualityWatchMetrics

Ask = Callable[[Canary], Awaitable[str]]

logger = logging.getLogger(__name__)


class QualityWatch:
    def __init__(
        self,
        canaries: Sequence[Canary],
        seconds: float,
        registry: CollectorRegistry,
        encoder: TextEmbedder | None = None,
    ) -> None:
        """`encoder` for canaries of kind "similarity", as the engine has it: on nobody's account."""
        self._canaries = canaries
        self._seconds = seconds
        self._encoder = encoder
        self._metrics = QualityWatchMetrics(registry)
        self.events = EventLog()
        self._lost: dict[str, float] = {}  # usual score less last score, by canary

    async def run(self, ask: Ask) -> None:
        """For ever."""
        while True:
            for canary in self._canaries:
                await asyncio.sleep(self._seconds)
                await self.try_one(canary, ask)

    async def try_one(self, canary: Canary, ask: Ask) -> None:
        """One that gets no answer keeps the score that it had."""
        try:
            score = await canary.score(await ask(canary), self._encoder)
        except Exception as error:  # the watch must go on; what failed is in the log, and counted
            self._metrics.asked.labels("failed").inc()
            self._record(canary, None)
            if isinstance(error, WeftError):  # the server is full, or its engine away
                log_event(
                    logger,
                    "canary not scored",
                    level=logging.WARNING,
                    canary=canary.name,
                    code=error.code or error.kind,
                )
            else:
                log_failure(logger, "a canary was not scored", error, canary=canary.name)
            return
        self._metrics.asked.labels("scored").inc()
        self._record(canary, score)
        self._metrics.score.labels(canary.name).set(score)
        self._lost[canary.name] = canary.usual - score
        self._metrics.drift.set(sum(self._lost.values()) / len(self._lost))
        if score < canary.usual:
            log_event(logger, "canary below its usual score", canary=canary.name, score=round(score, 3))

    def _record(self, canary: Canary, score: float | None) -> None:
        if self.events.records(CanaryScored.group):
            outcome = "failed" if score is None else "scored"
            self.events.add(CanaryScored(canary=canary.name, outcome=outcome, usual=canary.usual, score=score))
