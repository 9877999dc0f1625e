"""The sockets under the application."""

import asyncio
import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, cast

import uvicorn
from starlette.applications import Starlette
from uvicorn.lifespan.off import LifespanOff
from uvicorn.lifespan.on import LifespanOn

from serving.api.bounded_protocol import BoundedHttpProtocol
from serving.api.service import Service
from serving.api.socket_protocol import DrainingSocketProtocol

KEEP_ALIVE_SECONDS = 75
DRAIN_SECONDS = 30
PING_SECONDS = 20.0
SOCKET_ENVELOPE_BYTES = 1024  # around a body


class Listener(Protocol):
    """What listens beside HTTP, in the same event loop."""

    async def start(self) -> None:
        """Raises SetupError."""

    async def stop(self, patience: float) -> None:
        """Takes nothing new, and ends what still runs after so many seconds."""


class ApiServer(uvicorn.Server):
    """uvicorn's server and the listeners beside it: they begin together and drain together."""

    def __init__(
        self, config: uvicorn.Config, beside: Sequence[Listener] = (), on_start: Callable[[], None] | None = None
    ) -> None:
        super().__init__(config)
        self._beside = beside
        self._on_start = on_start

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        for listener in self._beside:
            await listener.start()
        await super().startup(sockets)
        if self._on_start is not None:
            self._on_start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        patience = self.config.timeout_graceful_shutdown or 0
        stopping = asyncio.gather(*(listener.stop(patience) for listener in self._beside))
        self.lifespan = cast(LifespanOn, _LifespanAfter(stopping, self.lifespan))
        await super().shutdown(sockets)
        await stopping


class _LifespanAfter:
    """What all listeners use ends after the last of them."""

    def __init__(self, stopping: asyncio.Future[list[None]], lifespan: LifespanOff | LifespanOn) -> None:
        self._stopping = stopping
        self._lifespan = lifespan

    async def shutdown(self) -> None:
        await self._stopping
        await self._lifespan.shutdown()


def api_server(
    app: Starlette,
    *,
    drain_seconds: int = DRAIN_SECONDS,
    beside: Sequence[Listener] = (),
    on_start: Callable[[], None] | None = None,
) -> ApiServer:
    """A server of `build_app`'s application, to `run(sockets=...)` on sockets that listen. SIGTERM and SIGINT stop it:
    it takes no new connection, and streams that are open get `drain_seconds` to end. `on_start` is called once all of
    it listens."""
    service: Service = app.state.service
    protocol = partial(BoundedHttpProtocol, metrics=service.metrics)
    config = uvicorn.Config(
        app,
        http=cast(type[asyncio.Protocol], protocol),  # uvicorn only calls it
        ws=DrainingSocketProtocol,
        ws_max_size=app.state.max_body_bytes + SOCKET_ENVELOPE_BYTES,
        ws_ping_interval=PING_SECONDS,  # finds who has vanished
        ws_ping_timeout=PING_SECONDS,
        ws_per_message_deflate=False,  # a few bytes could become very many
        lifespan="off",
        log_config=None,
        access_log=False,  # the application writes its own, without paths
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=drain_seconds,
    )
    return ApiServer(config, beside, on_start)
