"""One client request's generations, from all its prompts: slots taken, prompts checked, streams merged and measured."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager
from dataclasses import replace
from typing import cast

from serving.api.answered import Answer
from serving.api.caller import Caller
from serving.api.generation_trace import EngineSpans, generation_stage
from serving.api.merged_steps import Steps, StepsOf, merged_steps
from serving.api.model_choice import ModelChoice, chosen_model
from serving.api.moderated_steps import HEADER, moderated_steps
from serving.api.request_events import UNRECORDED, recorded_request
from serving.api.reused_answer import ReusedAnswer
from serving.api.service import Service
from serving.errors import RequestError
from serving.gateway.ask import Ask
from serving.gateway.fallback import Fallback
from serving.gateway.lease import Lease
from serving.generation.generator import Generator
from serving.generation.request import PreparedPrompt, TextDelta, TextRequest
from serving.observability.metrics import Outcome, StreamMeter
from serving.observability.request_trace import UNTRACED
from serving.orchestrator.moderation.judges.judge import Direction
from serving.orchestrator.moderation.review_record import Subject
from serving.sessions.logged_generation import LoggedEvent

ROOM_LOOK_SECONDS = 0.5  # of those who wait for a full engine

Deltas = AsyncGenerator[tuple[int, TextDelta], None]
Events = AsyncGenerator[LoggedEvent, None]


class Generation:
    """`prepared` has one entry for each prompt once the first delta is out."""

    def __init__(
        self,
        service: Service,
        requests: list[TextRequest],
        caller: Caller,
        *,
        stream: bool,
        client_names: Mapping[str, str] | None = None,
        reused: ReusedAnswer | None = None,
        answer: int = 0,
    ) -> None:
        """`client_names` are those that the client used for parameters which have another name below this layer.
        `reused` is for requests of one prompt that an earlier answer may serve. `answer` is its number in a turn."""
        self.prepared: list[PreparedPrompt] = []
        self.cached_tokens = 0
        self.guessed_tokens = 0
        self.accepted_tokens = 0
        self.lease: Lease | None = None  # once it is admitted
        self.noted: dict[Direction, dict[str, float]] = {}  # by moderation: category and score
        self._service = service
        self._requests = requests
        self._caller = caller
        self._stream = stream
        self._client_names = client_names or {}
        self._reused = reused
        self._answer = answer
        self._choice: ModelChoice | None = None  # once the model is chosen
        self._generated: dict[tuple[int, int], int] = {}  # tokens of each choice, whether it ended or not
        self._meters: dict[tuple[int, int], StreamMeter] = {}
        self._trace = UNTRACED
        self._told = UNRECORDED

    @property
    def model(self) -> str:
        """That answers, as the client named it where it did; until one is chosen, that which is asked."""
        if self._choice is None:
            return self._requests[0].model or self._service.card.name
        return self._choice.named or self._choice.name

    @property
    def fallback(self) -> Fallback | None:
        """Where `model` stands in for the one that was asked."""
        return None if self._choice is None else self._choice.fallback

    @property
    def service(self) -> Service:
        """Of the model that answers."""
        return self._service

    @property
    def generator(self) -> Generator:
        return self._service.generator

    @property
    def prompt_tokens(self) -> int:
        return sum(prompt.prompt_tokens for prompt in self.prepared)

    @property
    def completion_tokens(self) -> int:
        return sum(self._generated.values())

    async def deltas(self) -> Deltas:
        """(prompt, delta) as they come. Closing it aborts what has not ended.

        Raises what Gateway.admit, Generator.prepare and Generator.stream raise, and OverloadedError where no slot is
        free.
        """
        async with self._admitted(), aclosing(self._measured()) as steps:
            async for prompt, step in steps:
                if step.delta is not None:
                    yield prompt, step.delta

    async def events(self, opened: Callable[[tuple[PreparedPrompt, ...]], Awaitable[None]]) -> Events:
        """For a log: what came of the engine, from which the deltas can be made again. `opened` is told the prompts
        once they are admitted, before anything is generated. Raises as `deltas`."""
        async with self._admitted():
            await opened(tuple(self._capped()))
            async with aclosing(self._measured()) as steps:
                async for prompt, step in steps:
                    yield LoggedEvent(prompt, step.index, step.event)

    def _capped(self) -> Iterator[PreparedPrompt]:
        """The prompts as this lease has them continued, whatever another lease would allow."""
        cap = None if self.lease is None else self.lease.output_cap
        for prompt in self.prepared:
            sampling = prompt.sampling
            most = sampling.max_tokens if cap is None else min(cap, sampling.max_tokens)
            least = min(sampling.min_tokens, most)
            yield replace(prompt, sampling=replace(sampling, max_tokens=most, min_tokens=least))

    @asynccontextmanager
    async def _admitted(self) -> AsyncIterator[None]:
        service, user = self._service, self._requests[0].user
        with recorded_request(service.events, self._caller, service.card.name, user) as self._told:
            self._choice = await chosen_model(service, self._requests, self._caller)
            self._service = self._choice.service
            await self._wait_for_room()
            async with self._let_in():
                yield

    async def _wait_for_room(self) -> None:
        """For whom nobody waits, as long as it has patience: the door decides afterwards, as for everybody."""
        gateway, wish, base = self._service.gateway, self._requests[0].priority, self._service.card.name
        end = time.monotonic() + self._caller.patience_seconds
        while time.monotonic() < end and not gateway.is_draining:  # whoever has no patience costs no look
            if gateway.has_room(self._caller.principal, wish, model=base):
                return
            await asyncio.sleep(ROOM_LOOK_SECONDS)

    @asynccontextmanager
    async def _let_in(self) -> AsyncIterator[None]:
        n = max(self._requests[0].options.n, 1)
        service, principal = self._service, self._caller.principal
        wish = self._requests[0].priority
        assert self._choice is not None
        base = service.card.name
        service.gateway.knock(principal, wish, model=base)
        slots = service.slots.take(
            n * len(self._requests), service.metrics.open_streams, param="prompt" if n == 1 else "n"
        )
        trace = generation_stage(self._caller.trace, self._requests, service.card.name, stream=self._stream)
        with trace as self._trace, self._named_for_client(), slots:
            with service.gateway.preparing(base), trace.stage("prepare") as preparing:
                adapter = await service.adapter_of(self._choice.named)
                for request in self._requests:
                    if request.tools:
                        service.check_tool_format()
                    request = replace(request, adapter=adapter) if adapter else request
                    self.prepared.append(await service.generator.prepare(request, preparing))
                    service.metrics.prompt_tokens.observe(self.prepared[-1].prompt_tokens)
            ask = Ask.of(self.prepared, model=service.model_id(adapter), stream=self._stream, priority=wish, base=base)
            async with AsyncExitStack() as admitted:
                with trace.stage("admission"):
                    self.lease = await admitted.enter_async_context(service.gateway.admit(principal, ask))
                self._caller.reply_fields.update(self.lease.metadata)
                self._told.admitted(self.lease, self.prepared)
                if self._choice.fallback is not None:
                    self._told.notice("model_fallback", self._choice.fallback.header)
                yield

    @contextmanager
    def _named_for_client(self) -> Iterator[None]:
        try:
            yield
        except RequestError as error:
            name = self._client_names.get(error.param or "")
            if name is None:
                raise
            raise error.renamed(name) from None

    def _steps(self) -> Steps:
        if self._reused is None or self.lease is None or self._service.semantic_cache is None:
            return self._moderated()
        return self._reused.steps(self.prepared[0], self.lease, self._moderated)

    def _moderated(self, source: StepsOf = merged_steps) -> Steps:
        subject = Subject(self._caller.principal.tenant, self._caller.request_id, self._requests[0].user)

        def noted(flags: Mapping[str, float]) -> None:
            told = (f"{category}={score:.2f}" for category, score in sorted(flags.items()))
            self._caller.reply_fields[HEADER] = ", ".join(told)
            self.noted["input"] = dict(flags)

        return moderated_steps(
            self._service, subject, self._requests, self.prepared, noted=noted, source=source, answer=self._answer
        )

    async def _measured(self) -> Steps:
        self._meters = {
            (prompt, choice): StreamMeter(self._service.metrics, self._caller.arrival)
            for prompt, prepared in enumerate(self.prepared)
            for choice in range(prepared.n)
        }
        spans = EngineSpans(self._trace, self.prepared) if self._trace.is_recorded else None
        outcome: Outcome = "abort"
        try:
            async with aclosing(self._steps()) as steps:
                async for prompt, step in steps:
                    if spans is not None:
                        spans.see(prompt, step)
                    self._told.see(prompt, step)
                    if step.delta is not None:
                        self._measure(prompt, step.delta)
                    yield prompt, step
        except Exception:
            outcome = "error"
            raise
        finally:
            now = time.monotonic()
            for meter in self._meters.values():
                meter.end(now, outcome)
            if spans is not None:
                spans.end(self.completion_tokens, self._caller.arrival)

    def _measure(self, prompt: int, delta: TextDelta) -> None:
        now = time.monotonic()
        meter = self._meters[prompt, delta.index]
        meter.delta(now, delta.usage.completion_tokens)
        if not self._generated and self.lease is not None:
            answer = Answer(self._caller.principal.tenant, self.lease.ask.model, self._caller.request_id)
            self._service.answered.note(answer.request_id, answer)
        self._generated[prompt, delta.index] = delta.usage.completion_tokens
        if delta.finish_reason is None:
            return
        if delta.flags:
            self.noted["output"] = self.noted.get("output", {}) | dict(delta.flags)
        meter.end(now, cast(Outcome, delta.finish_reason.value))
        self.guessed_tokens += delta.usage.guessed_tokens
        self.accepted_tokens += delta.usage.accepted_tokens
        if delta.index == 0:
            self.cached_tokens += delta.usage.cached_tokens
