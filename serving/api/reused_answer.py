"""One request that an earlier answer may serve, or whose own answer is held against it, or kept for later ones.

A served answer goes the way of a generated one, from the engine's event on: through moderation, to every protocol that
chat completions have. The model does nothing for it, so nothing but the prompt is on the tenant's account.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from serving.api.merged_steps import Steps, StepsOf, merged_steps
from serving.gateway.lease import Lease, Tokens
from serving.generation.choice import ChoiceStep
from serving.generation.generator import ChoiceGate, Generator
from serving.generation.request import PreparedPrompt, TextRequest, Usage
from serving.orchestrator.semantic_cache.answer import Answer, AnswerRecord
from serving.orchestrator.semantic_cache.entries import Match
from serving.orchestrator.semantic_cache.semantic_cache import SemanticCache
from serving.sessions.logged_generation import LoggedEvent

HEADER = "x-weft-semantic-cache"


class ReusedAnswer:
    """`told` is what the reply says of an answer that served again; empty where it is a fresh one."""

    def __init__(self, cache: SemanticCache, request: TextRequest, tenant: str, fields: dict[str, str]) -> None:
        """`fields` are the headers that the reply will have."""
        self.told: dict[str, Any] = {}
        self._cache = cache
        self._request = request
        self._tenant = tenant
        self._fields = fields
        self._era = cache.era

    async def steps(self, prepared: PreparedPrompt, lease: Lease, moderated: Callable[[StepsOf], Steps]) -> Steps:
        """`moderated` gives a source's steps as they may be seen."""
        cache, request, tenant = self._cache, self._request, self._tenant
        mode = cache.mode_of(tenant) if cache.takes(request, prepared) else "off"
        caps = (prepared.sampling.max_tokens, lease.output_cap)
        most = min(cap for cap in caps if cap is not None)
        look = await cache.look(request, prepared, tenant, most) if mode == "serve" else None
        if look is not None and look.match is not None:
            steps, record = self._served(look.match, prepared, lease, moderated), None
        else:
            steps, record = moderated(merged_steps), AnswerRecord()
        async with aclosing(steps):
            async for prompt, step in steps:
                if record is not None:
                    record.see(step)
                yield prompt, step
        answer = None if record is None else record.answer()
        if answer is not None and mode == "shadow":
            cache.compare(request, prepared, tenant, most, answer, self._era)
        elif answer is not None and look is not None:
            cache.keep(look, answer, self._era)

    async def _served(
        self, match: Match, prepared: PreparedPrompt, lease: Lease, moderated: Callable[[StepsOf], Steps]
    ) -> Steps:
        tokens = prepared.prompt_tokens
        lease.settle(Tokens(prompt=tokens, cached=tokens))
        similarity, age = round(match.similarity, 4), int(match.age_seconds)
        self._fields[HEADER] = f"hit; similarity={similarity}; age={age}"
        self.told = {"semantic_cache": {"similarity": similarity, "age_seconds": age}}
        usage = Usage(prompt_tokens=tokens, cached_tokens=tokens, completion_tokens=0)
        async with aclosing(moderated(_replay(match.answer))) as steps:
            async for prompt, step in steps:
                if step.delta is not None:
                    step = replace(step, delta=replace(step.delta, usage=usage))
                yield prompt, step


def _replay(answer: Answer) -> StepsOf:
    """As `merged_steps`, of one prompt with one choice, without the engine."""

    async def steps(
        generator: Generator,
        prepared: Sequence[PreparedPrompt],
        past: Sequence[LoggedEvent] = (),
        gates: Sequence[ChoiceGate] = (),
    ) -> Steps:
        (prompt,) = prepared
        told = _told(generator, prompt, answer)
        async with aclosing(gates[0](0, told) if gates else told) as shown:
            async for step in shown:
                yield 0, step

    return steps


async def _told(generator: Generator, prepared: PreparedPrompt, answer: Answer) -> AsyncGenerator[ChoiceStep, None]:
    (choice,) = generator.choices(prepared)
    event = answer.event(prepared.request_id, prepared.prompt_tokens)
    yield ChoiceStep(0, event, choice.feed(event))
