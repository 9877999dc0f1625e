"""All judges of a deployment, asked at once."""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from serving.errors import WeftError
from serving.observability.logs import log_event, log_failure
from serving.orchestrator.moderation.judges.judge import Finding, Judge, Passage
from serving.orchestrator.moderation.moderation_metrics import ModerationMetrics
from serving.settings.moderation import OnFailure

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Seat:
    judge: Judge
    on_failure: OnFailure
    timeout_seconds: float


@dataclass(frozen=True, slots=True)
class Judgement:
    findings: Sequence[Finding]  # of all judges; several may find the same category
    failed: bool = False  # a judge that fails closed has failed


class Panel:
    def __init__(self, seats: Mapping[str, Seat], metrics: ModerationMetrics) -> None:
        self._seats = dict(seats)
        self._metrics = metrics

    @property
    def immediate(self) -> bool:
        return all(seat.judge.immediate for seat in self._seats.values())

    @property
    def categories(self) -> frozenset[str]:
        return frozenset().union(*(seat.judge.categories for seat in self._seats.values()))

    async def judge(self, passage: Passage) -> Judgement:
        if self.immediate:
            answers = [await self._answer(name, seat, passage) for name, seat in self._seats.items()]
        else:
            asked = [self._answer(name, seat, passage) for name, seat in self._seats.items()]
            answers = await asyncio.gather(*asked)
        findings = [
            replace(finding, judge=name)
            for name, answer in zip(self._seats, answers, strict=True)
            if answer is not None
            for finding in answer
        ]
        seats = self._seats.values()
        failed = any(a is None and seat.on_failure == "closed" for a, seat in zip(answers, seats, strict=True))
        return Judgement(findings, failed)

    async def close(self) -> None:
        for seat in self._seats.values():
            await seat.judge.close()

    async def _answer(self, name: str, seat: Seat, passage: Passage) -> Sequence[Finding] | None:
        """None where the judge failed, which is logged without the text."""
        begin = time.monotonic()
        try:
            if seat.judge.immediate:
                return await seat.judge.judge(passage)
            async with asyncio.timeout(seat.timeout_seconds):
                return await seat.judge.judge(passage)
        except TimeoutError:
            self._fail(name, seat, f"no answer within {seat.timeout_seconds:g} seconds")
        except WeftError as error:
            self._fail(name, seat, error.message)
        except Exception as error:  # a judge of any kind must not end a stream otherwise than its policy says
            log_failure(logger, "a judge failed", error)
            self._fail(name, seat, type(error).__name__)
        finally:
            self._metrics.seconds.labels(name).observe(time.monotonic() - begin)
        return None

    def _fail(self, name: str, seat: Seat, reason: str) -> None:
        self._metrics.failures.labels(name, seat.on_failure).inc()
        log_event(
            logger,
            "a judge did not answer",
            level=logging.WARNING,
            judge=name,
            on_failure=seat.on_failure,
            reason=reason,
        )
