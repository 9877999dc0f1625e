"""Turns of a conversation over HTTP: their calls of the model pass the gate that every request passes."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from serving.api.caller import Caller
from serving.api.generation import Generation
from serving.api.service import Service, new_id
from serving.api.turn_pages import TurnPages
from serving.engine.request import FinishReason, Priority
from serving.errors import EngineError
from serving.gateway.lease import Lease
from serving.generation.answers.delta_reader import DeltaReader
from serving.generation.request import GenerationOptions, TextDelta, TextRequest
from serving.observability.request_trace import UNTRACED
from serving.orchestrator.memory.turn_memory import TurnMemory
from serving.orchestrator.moderation.judges.judge import Direction
from serving.orchestrator.turn import TurnRunner

_SUMMARY_SHARE = 0.25  # of the window, at most


class ModelCalls:
    """The model, as a turn calls it: each answer a generation of its own: admitted, counted and traced."""

    def __init__(self, service: Service, caller: Caller, *, stream: bool) -> None:
        self._service = service
        self.caller = caller
        self._stream = stream
        self._made: list[Generation] = []

    @property
    def lease(self) -> Lease | None:
        """Of the newest call; None until it is admitted."""
        return self._made[-1].lease if self._made else None

    def use(self, service: Service) -> None:
        """From now on that of another model."""
        self._service = service

    @property
    def prompt_tokens(self) -> int:
        return sum(made.prompt_tokens for made in self._made)

    @property
    def completion_tokens(self) -> int:
        return sum(made.completion_tokens for made in self._made)

    @property
    def noted(self) -> dict[Direction, dict[str, float]]:
        """What moderation noted of all that was asked and answered: category and score."""
        found: dict[Direction, dict[str, float]] = {}
        for made in self._made:
            for direction, flags in made.noted.items():
                found[direction] = found.get(direction, {}) | flags
        return found

    async def __call__(self, request: TextRequest) -> AsyncGenerator[TextDelta, None]:
        # One turn has one model, which was chosen for it.
        request = replace(request, model=self._service.card.name, may_fall_back=False)
        generation = Generation(self._service, [request], self.caller, stream=self._stream, answer=len(self._made))
        self._made.append(generation)
        async with aclosing(generation.deltas()) as deltas:
            async for _, delta in deltas:
                yield delta


def turn_runner(service: Service, calls: ModelCalls) -> TurnRunner:
    """For one request."""
    return TurnRunner(
        service.generator,
        calls,
        service.toolbox.registry,
        control=service.control_tokens,
        keep=TurnPages(service, calls.caller),
        memory=_memory_of(service, calls.caller),
    )


def _memory_of(service: Service, caller: Caller) -> TurnMemory | None:
    """Summaries are made later and behind everybody else: the request that they come of has ended by then."""
    memories = service.memories
    if memories is None:
        return None
    later = replace(caller, request_id=new_id(), reply_fields={}, trace=UNTRACED)

    async def ask(prompt: str) -> str:
        request = TextRequest(
            request_id=new_id(),
            messages=[{"role": "user", "content": prompt}],
            # Stated, so that a prompt which leaves it no room is refused: a summary takes the place of what was said.
            # What it reasons would take the tokens of what it is to say.
            reasoning_effort=None if chat_format is None else chat_format.least_effort(),
            options=GenerationOptions(temperature=0, max_tokens=min(memories.summary_tokens, most)),
            priority=Priority.BATCH,
            tenant=caller.principal.tenant,
        )
        return await _summary(ModelCalls(service, later, stream=False)(request))

    chat_format = service.generator.chat_format
    most = max(1, int(service.generator.max_model_len * _SUMMARY_SHARE))
    return TurnMemory(memories, ask)


async def _summary(answer: AsyncGenerator[TextDelta, None]) -> str:
    """Without what the model reasons. Raises EngineError where the answer was broken off, by moderation too."""
    reader, texts, finish = DeltaReader(None, iter(())), list[str](), None
    async with aclosing(answer) as deltas:
        async for delta in deltas:
            texts.append(reader.read(delta).content)
            finish = delta.finish_reason
    if finish not in (FinishReason.STOP, FinishReason.LENGTH):
        raise EngineError(f"the summary ended with {finish.value if finish else 'nothing'}, before it was whole")
    return "".join(texts)
