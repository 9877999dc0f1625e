"""Turns of a conversation over HTTP: their calls of the model pass the gate that every request passes."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from serving.api.caller import Caller
from serving.api.generation import Generation
from serving.api.service import Service
from serving.generation.request import TextDelta, TextRequest
from serving.orchestrator.turn import TurnRunner


def turn_runner(service: Service, caller: Caller) -> TurnRunner:
    """For one request. Each answer of the model is a generation of its own: admitted, counted and traced."""

    async def generate(request: TextRequest) -> AsyncGenerator[TextDelta, None]:
        async with aclosing(Generation(service, [request], caller, stream=True).deltas()) as deltas:
            async for _, delta in deltas:
                yield delta

    return TurnRunner(service.generator, generate, service.toolbox.registry, control=service.control_tokens)
