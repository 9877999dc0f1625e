"""Benign texts that the judges are tried on while they serve: what they stop of them is stopped wrongly."""

import asyncio
import logging
import tomllib
from collections.abc import Sequence
from pathlib import Path

from serving.observability.logs import log_failure
from serving.orchestrator.moderation.judges.judge import Passage
from serving.orchestrator.moderation.moderation import Moderation
from serving.orchestrator.moderation.policy import Policy

FILE = Path(__file__).parent / "tables" / "canaries.toml"
ANY = "any"

logger = logging.getLogger(__name__)


def canary_texts() -> list[str]:
    return [text for texts in tomllib.loads(FILE.read_text(encoding="utf-8")).values() for text in texts]


class Canaries:
    """One text every so often, so that it is no load: as an input, by the policy of tenants without one of their own.
    Encoders take it in the batch class."""

    def __init__(self, moderation: Moderation, seconds: float, texts: Sequence[str] | None = None) -> None:
        self._moderation = moderation
        self._seconds = seconds
        self._texts = list(texts if texts is not None else canary_texts())

    async def run(self) -> None:
        """For ever. After each round the gauges say what share of it was stopped."""
        while True:
            try:
                await self.round()
            except Exception as error:  # the trying must go on; what failed is in the log
                log_failure(logger, "a round of canaries failed", error)
                await asyncio.sleep(self._seconds)

    async def round(self) -> None:
        policy = self._moderation.policies.default
        if policy is None:
            await asyncio.sleep(self._seconds)
            return
        stopped: dict[str, int] = {ANY: 0, **dict.fromkeys(sorted(self._moderation.panel.categories), 0)}
        judged = 0
        for text in self._texts:
            await asyncio.sleep(self._seconds)
            categories = await self._stopped_by(policy, text)
            if categories is None:
                continue
            judged += 1
            for category in categories | ({ANY} if categories else set()):
                stopped[category] += 1
        for category, count in stopped.items():
            if judged:
                self._moderation.metrics.false_positives.labels(category).set(count / judged)

    async def _stopped_by(self, policy: Policy, text: str) -> set[str] | None:
        """The categories that would have stopped it; None where a judge failed, which says nothing of it."""
        judgement = await self._moderation.panel.judge(Passage(text=text, direction="input", fresh=len(text)))
        verdicts = [policy.verdict(judgement.findings, direction) for direction in ("input", "output")]
        found = {f.category for verdict in verdicts for action, f in verdict.fired if action in ("block", "cut")}
        outcome = "failed" if judgement.failed else "stopped" if found else "passed"
        self._moderation.metrics.canaries.labels(outcome).inc()
        return None if judgement.failed else found
