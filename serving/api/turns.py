"""Turns of a conversation over HTTP: their calls of the model pass the gate that every request passes."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from functools import partial

from serving.api.caller import Caller
from serving.api.generation import Generation
from serving.api.service import Service, new_id
from serving.api.turn_pages import TurnPages
from serving.engine.request import Priority
from serving.generation.request import GenerationOptions, TextDelta, TextRequest
from serving.observability.request_trace import UNTRACED
from serving.orchestrator.memory.turn_memory import TurnMemory
from serving.orchestrator.turn import TurnRunner


class ModelCalls:
    """The model, as a turn calls it: each answer a generation of its own: admitted, counted and traced."""

    def __init__(self, service: Service, caller: Caller, *, stream: bool) -> None:
        self._service = service
        self.caller = caller
        self._stream = stream
        self._made: list[Generation] = []

    @property
    def prompt_tokens(self) -> int:
        return sum(made.prompt_tokens for made in self._made)

    @property
    def completion_tokens(self) -> int:
        return sum(made.completion_tokens for made in self._made)

    async def __call__(self, request: TextRequest) -> AsyncGenerator[TextDelta, None]:
        generation = Generation(self._service, [request], self.caller, stream=self._stream)
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
        memory=None if service.memories is None else TurnMemory(service.memories, partial(_summary, service, calls.caller)),
    )
