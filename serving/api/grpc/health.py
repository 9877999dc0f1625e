"""grpc.health.v1: what /health/ready says, to those who ask in gRPC."""

import asyncio
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from serving.api.health import first_missed, model_states
from serving.api.service import Service
from serving.client import schema

WATCH_SECONDS = 1.0  # between two looks at the engine, for those who watch it
SERVICES = ("", schema.SERVICE)  # "" is the server as a whole

_MESSAGES: Any = health_pb2  # made when it is imported
_STATES = _MESSAGES.HealthCheckResponse


class Health(health_pb2_grpc.HealthServicer):
    """Asked of the engine itself, each time. Everybody may ask: the answer tells nothing else."""

    def __init__(self, service: Service, *, watch_seconds: float = WATCH_SECONDS) -> None:
        self._service = service
        self._watch_seconds = watch_seconds
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """From now on the answer is no, whatever the engine says."""
        self._stopping.set()

    async def Check(self, request: Any, context: grpc.aio.ServicerContext) -> Any:
        if request.service not in SERVICES:
            await context.abort(grpc.StatusCode.NOT_FOUND, "there is no such service here")
        return _STATES(status=await self._state())

    async def List(self, request: Any, context: grpc.aio.ServicerContext) -> Any:
        state = _STATES(status=await self._state())
        return _MESSAGES.HealthListResponse(statuses=dict.fromkeys(SERVICES, state))

    async def Watch(self, request: Any, context: grpc.aio.ServicerContext) -> None:
        """The state now, and whenever it has changed."""
        if request.service not in SERVICES:
            await context.write(_STATES(status=_STATES.SERVICE_UNKNOWN))
            await self._stopping.wait()
            return
        last: int | None = None
        while True:
            state = await self._state()
            if state != last:
                await context.write(_STATES(status=state))
                last = state
            if self._stopping.is_set():
                return
            await self._pause()

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(self._watch_seconds):
                await self._stopping.wait()
        except TimeoutError:
            return

    async def _state(self) -> int:
        if self._stopping.is_set():
            return _STATES.NOT_SERVING
        missed = first_missed(self._service, await model_states(self._service))
        return _STATES.SERVING if missed is None else _STATES.NOT_SERVING
