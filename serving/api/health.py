"""GET /health/live, /health/ready and /metrics: asked of the engine itself, each time."""

import asyncio
from dataclasses import asdict

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

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
        stats = await ask_engine(service)
        if not stats.ready:
            raise EngineUnavailableError("the engine is not ready yet", code="engine_not_ready")
        if stats.state == EngineState.ASLEEP and stats.wakes_on_request:
            return JSONResponse({"status": "asleep"})
        if stats.state != EngineState.RUNNING:
            raise EngineUnavailableError(f"the engine is {stats.state}", code=f"engine_{stats.state}")
        return JSONResponse({"status": "ready"})

    async def exposition(_: Request) -> Response:
        try:
            snapshot = asdict(await ask_engine(service))
        except WeftError:  # away, or of another version: what this process counted is still true
            snapshot = None
        return Response(service.metrics.render(snapshot), headers={"content-type": CONTENT_TYPE})

    return [
        Route("/health/live", live, methods=["GET"]),
        Route("/health/ready", ready, methods=["GET"]),
        Route("/health", ready, methods=["GET"]),
        *([Route("/metrics", exposition, methods=["GET"])] if metrics else []),
    ]


async def ask_engine(service: Service) -> EngineStats:
    """Raises EngineUnavailableError, also where the engine does not answer in time."""
    try:
        async with asyncio.timeout(ENGINE_ANSWER_SECONDS):
            return await service.engine.stats()
    except TimeoutError:
        raise EngineUnavailableError(
            f"the engine has not answered for {ENGINE_ANSWER_SECONDS:g} seconds", code="engine_silent"
        ) from None
