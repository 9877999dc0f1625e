"""Operations on the engine, of the admin listener alone.

    GET  /v1/engine                the state, and the version of the weights
    POST /v1/engine/pause          no step begins; streams wait
    POST /v1/engine/resume
    POST /v1/engine/sleep          {"weights": "host" | "none"}: gives the memory back
    POST /v1/engine/wake
    POST /v1/engine/weights        {"checkpoint": a folder inside of operations.checkpoints}
    POST /v1/engine/trace/start    {"name": of a file in operations.traces}: records steps (docs/step_traces.md)
    POST /v1/engine/trace/stop

Each answers once it is done, with what it left behind.
"""

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Literal

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from serving.api.request_body import read_typed
from serving.api.typed_body import Body
from serving.engine.client import Engine
from serving.engine.operation import LoadWeights, Operation, Pause, Resume, Sleep, StartTrace, StopTrace, Wake

_BODY_BYTES = 4096


class NothingBody(Body):
    """An object without members."""


class SleepBody(Body, kw_only=True):
    weights: Literal["host", "none"] | None = None


class WeightsBody(Body, kw_only=True):
    checkpoint: str


class TraceBody(Body, kw_only=True):
    name: str


def engine_routes(engine: Engine) -> list[Route]:
    async def state(_: Request) -> Response:
        stats = await engine.stats()
        return JSONResponse({"state": stats.state, "weights": stats.weights or None})

    async def sleep(request: Request) -> Operation:
        body = await read_typed(request, SleepBody, _BODY_BYTES)
        return Sleep(weights=body.weights or "host")

    async def weights(request: Request) -> Operation:
        return LoadWeights(checkpoint=(await read_typed(request, WeightsBody, _BODY_BYTES)).checkpoint)

    async def start_trace(request: Request) -> Operation:
        return StartTrace(name=(await read_typed(request, TraceBody, _BODY_BYTES)).name)

    def answered(read: Callable[[Request], Awaitable[Operation]]) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            report = await engine.operate(await read(request))
            return JSONResponse({name: value for name, value in asdict(report).items() if value is not None})

        return answer

    posts = {
        "pause": _without_members(Pause()),
        "resume": _without_members(Resume()),
        "sleep": sleep,
        "wake": _without_members(Wake()),
        "weights": weights,
        "trace/start": start_trace,
        "trace/stop": _without_members(StopTrace()),
    }
    return [
        Route("/v1/engine", state, methods=["GET"]),
        *(Route(f"/v1/engine/{name}", answered(read), methods=["POST"]) for name, read in posts.items()),
    ]


def _without_members(operation: Operation) -> Callable[[Request], Awaitable[Operation]]:
    async def read(request: Request) -> Operation:
        await read_typed(request, NothingBody, _BODY_BYTES)
        return operation

    return read
