"""GET /health/live, /health/ready and /metrics: asked of the engine itself, each time."""

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from serving.api.engine_watch import takes_requests
from serving.api.error_reply import error_code
from serving.api.service import Service
from serving.engine.client import EngineStats
from serving.engine.operation import EngineState
from serving.errors import EngineUnavailableError, OverloadedError, WeftError
from serving.gateway.gateway import DRAIN_RETRY_SECONDS
from serving.observability.metrics import CONTENT_TYPE

ENGINE_ANSWER_SECONDS = 2.0


def health_routes(service: Service, *, metrics: bool = True) -> list[Route]:
    async def live(_: Request) -> Response:
        return JSONResponse({"status": "live"})

    async def ready(_: Request) -> Response:
        if service.gateway.is_draining:
            raise OverloadedError("the server is draining", retry_after=DRAIN_RETRY_SECONDS, code="server_draining")
        states = await model_states(service)
        missed = first_missed(service, states)
        if missed is not None:
            raise missed
        if len(states) == 1:
            return JSONResponse({"status": states[service.card.name]})
        told = {name: error_code(state) if isinstance(state, WeftError) else state for name, state in states.items()}
        return JSONResponse({"status": "ready", "models": told})

    async def exposition(_: Request) -> Response:
        first, *others = service.every
        for one in others:
            one.metrics.see_engine(await _snapshot(one))
        return Response(first.metrics.render(await _snapshot(first)), headers={"content-type": CONTENT_TYPE})

    return [
        Route("/health/live", live, methods=["GET"]),
        Route("/health/ready", ready, methods=["GET"]),
        Route("/health", ready, methods=["GET"]),
        *([Route("/metrics", exposition, methods=["GET"])] if metrics else []),
    ]


async def model_states(service: Service) -> dict[str, str | WeftError]:
    """Of each model: ready, asleep, or why it takes no requests."""
    every = service.every
    return dict(zip((one.card.name for one in every), await asyncio.gather(*map(_state, every)), strict=True))


def first_missed(service: Service, states: Mapping[str, str | WeftError]) -> WeftError | None:
    """Why the server is not ready: a model takes no requests, and none that could stand in for it does. None where it
    is ready."""
    for name, state in states.items():
        standing: str | None = name
        while standing is not None and isinstance(states[standing], WeftError):
            standing = service.routing.fallback.get(standing)
        if isinstance(state, WeftError) and standing is None:
            return state
    return None


async def _state(service: Service) -> str | WeftError:
    try:
        stats = await ask_engine(service)
    except WeftError as error:
        return error
    if not stats.ready:
        return EngineUnavailableError("the engine is not ready yet", code="engine_not_ready")
    if takes_requests(stats):
        return "asleep" if stats.state == EngineState.ASLEEP else "ready"
    return EngineUnavailableError(f"the engine is {stats.state}", code=f"engine_{stats.state}")


async def _snapshot(service: Service) -> dict[str, Any] | None:
    try:
        return asdict(await ask_engine(service))
    except WeftError:  # away, or of another version: what this process counted is still true
        return None


async def ask_engine(service: Service) -> EngineStats:
    """Raises EngineUnavailableError, also where the engine does not answer in time."""
    try:
        async with asyncio.timeout(ENGINE_ANSWER_SECONDS):
            return await service.engine.stats()
    except TimeoutError:
        raise EngineUnavailableError(
            f"the engine has not answered for {ENGINE_ANSWER_SECONDS:g} seconds", code="engine_silent"
        ) from None
