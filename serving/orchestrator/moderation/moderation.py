"""What the API asks: whose policy, may this be asked, may this be shown."""

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from serving.errors import OverloadedError, RequestError
from serving.events.event_log import EventLog
from serving.events.event_types import ModerationFinding, ModerationVerdict
from serving.generation.choice import Choice
from serving.observability.logs import log_event
from serving.orchestrator.moderation.judges.judge import Direction, Passage
from serving.orchestrator.moderation.moderation_metrics import ModerationMetrics
from serving.orchestrator.moderation.paced_choice import PacedChoice, Prompt, Stretch
from serving.orchestrator.moderation.panel import Judgement, Panel
from serving.orchestrator.moderation.policy import Action, Policies, Policy, Verdict
from serving.orchestrator.moderation.review import ReviewQueue
from serving.orchestrator.moderation.review_record import Subject

REFUSED = "content_filter"
UNAVAILABLE = "moderation_unavailable"
RETRY_SECONDS = 5.0
_MOST_REMEMBERED = 4096  # texts: a conversation's history comes again with each of its turns

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moderation:
    policies: Policies
    panel: Panel
    metrics: ModerationMetrics
    review: ReviewQueue | None = None
    canary_seconds: float | None = None  # between benign texts that the judges are tried on
    memory: "OrderedDict[bytes, Judgement]" = field(default_factory=OrderedDict)
    events: EventLog = field(default_factory=EventLog)

    async def check_input(
        self, policy: Policy, subject: Subject, texts: Sequence[str], *, param: str
    ) -> dict[str, float]:
        """What the policy notes: category and score. Raises RequestError (`content_filter`, of `param`) for what it
        blocks, OverloadedError (`moderation_unavailable`) where a judge that must not fail has failed."""
        flags: dict[str, float] = {}
        verdicts = await asyncio.gather(*(self._input_verdict(policy, text) for text in texts))
        for at, (text, verdict) in enumerate(zip(texts, verdicts, strict=True)):
            is_kept = await self._act(subject, str(at), "input", verdict, text)
            flags.update(replace(verdict, tells_review=is_kept and policy.tells_review).flags)
        blocked = sorted({finding.category for verdict in verdicts for finding in verdict.of("block")})
        if blocked:
            raise RequestError(
                f"this server's content policy does not allow what is asked ({', '.join(blocked)}); change the text",
                param=param,
                code=REFUSED,
            )
        if any(verdict.failed for verdict in verdicts):
            raise unavailable()
        return flags

    def paced(
        self,
        policy: Policy,
        subject: Subject,
        place: str,
        index: int,
        choice: Choice,
        prompt: Prompt,
        *,
        has_literals: bool,
    ) -> PacedChoice:
        """`place` tells the answers of one request apart; `has_literals`: a program may read this one."""

        told: set[tuple[Action, str]] = set()  # what is found once is found again while it is context

        async def judged(stretch: Stretch) -> Verdict:
            judgement = await self._stretch_judgement(stretch)
            verdict = policy.verdict(judgement.findings, "output", failed=judgement.failed)
            news = replace(verdict, fired=tuple(f for f in verdict.fired if (f[0], f[1].category) not in told))
            told.update((action, finding.category) for action, finding in news.fired)
            texts = [passage.text for passage in (stretch.written, stretch.read) if passage is not None]
            is_kept = await self._act(subject, place, "output", news, "\n".join(texts))
            return replace(verdict, tells_review=is_kept and policy.tells_review)

        waits = not self.panel.immediate
        return PacedChoice(index, choice, policy, judged, prompt, waits=waits, has_literals=has_literals)

    async def judgements(self, texts: Sequence[str]) -> list[Judgement]:
        """As inputs, of nobody's policy."""
        return list(await asyncio.gather(*(self._judgement(text) for text in texts)))

    async def close(self) -> None:
        await self.panel.close()
        if self.review is not None:
            self.review.close()

    async def _input_verdict(self, policy: Policy, text: str) -> Verdict:
        judgement = await self._judgement(text)
        return policy.verdict(judgement.findings, "input", failed=judgement.failed)

    async def _judgement(self, text: str) -> Judgement:
        key = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()
        known = self.memory.get(key)
        if known is not None:
            self.memory.move_to_end(key)
            return known
        judgement = await self.panel.judge(Passage(text=text, direction="input", fresh=len(text)))
        if not judgement.failed:
            self.memory[key] = judgement
            while len(self.memory) > _MOST_REMEMBERED:
                self.memory.popitem(last=False)
        return judgement

    async def _stretch_judgement(self, stretch: Stretch) -> Judgement:
        """Places are those of what was written."""
        if stretch.read is None:
            return await self.panel.judge(stretch.written)
        written, read = await asyncio.gather(self.panel.judge(stretch.written), self.panel.judge(stretch.read))
        found = [
            finding if finding.start is None else replace(finding, start=stretch.places[finding.start])
            for finding in read.findings
        ]
        return Judgement([*written.findings, *found], written.failed or read.failed)

    async def _act(self, subject: Subject, place: str, direction: Direction, verdict: Verdict, text: str) -> bool:
        """Counts, logs without the text, and leaves records for a person: says whether there is one."""
        is_kept = False
        outcome = "failed" if verdict.failed else "stopped" if verdict.stops else "noted" if verdict.fired else "passed"
        self.metrics.verdicts.labels(direction, outcome).inc()
        for action, finding in verdict.fired:
            self.metrics.findings.labels(direction, finding.category, action).inc()
            if action == "route" and self.review is not None:
                is_kept |= await self.review.add(subject, place, direction, finding, text)
        if verdict.fired or verdict.failed:
            log_event(
                logger,
                "moderation",
                request_id=subject.request_id,
                direction=direction,
                outcome=outcome,
                findings=" ".join(
                    f"{finding.category}={finding.score:.2f}:{action}" for action, finding in verdict.fired
                ),
            )
            self._record(subject, direction, verdict)
        return is_kept

    def _record(self, subject: Subject, direction: Direction, verdict: Verdict) -> None:
        if not self.events.records(ModerationVerdict.group, subject.request_id):
            return
        recorded = ModerationVerdict(
            tenant=subject.tenant,
            direction=direction,
            outcome="failed" if verdict.failed else "stopped" if verdict.stops else "noted",
            findings=tuple(
                ModerationFinding(
                    category=finding.category, action=action, score=finding.score, judge=finding.judge or None
                )
                for action, finding in verdict.fired
            ),
        )
        self.events.add(recorded, subject.request_id)


def unavailable() -> OverloadedError:
    return OverloadedError(
        "the text could not be checked against this server's content policy; try again later",
        retry_after=RETRY_SECONDS,
        code=UNAVAILABLE,
    )
