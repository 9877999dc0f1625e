"""The sockets under the application."""

import asyncio
import socket
from collections.abc import Callable, Sequence
from functools import partial
from types import FrameType
from typing import Protocol, cast

import uvicorn
from starlette.applications import Starlette
from uvicorn.lifespan.off import LifespanOff
from uvicorn.lifespan.on import LifespanOn

from serving.api.accept_queue import AcceptQueue
from serving.api.bounded_protocol import BoundedHttpProtocol
from serving.api.certificate_files import CertificateFiles, keep_renewed
from serving.api.drain import Drain
from serving.api.service import Service
from serving.api.socket_protocol import DrainingSocketProtocol
from serving.api.tls import tls_options
from serving.settings.server import DRAIN_SECONDS, TlsConfig

KEEP_ALIVE_SECONDS = 75
FLUSH_SECONDS = 1  # for the last event of each stream, after the drain
PING_SECONDS = 20.0
SOCKET_ENVELOPE_BYTES = 1024  # around a body
# uvloop takes one connection of each descriptor a turn, and a turn of a busy server lasts milliseconds.
DESCRIPTORS = 8


class Listener(Protocol):
    """What listens beside HTTP, in the same event loop."""

    async def start(self) -> None:
        """Raises SetupError."""

    async def stop(self, patience: float) -> None:
        """Takes nothing new, and ends what still runs after so many seconds."""


class ApiServer(uvicorn.Server):
    """uvicorn's server and the listeners beside it: they begin together and drain together. The first SIGTERM or
    SIGINT drains, a second one ends it at once."""

    def __init__(
        self,
        config: uvicorn.Config,
        drain: Drain,
        queue: AcceptQueue,
        certificate: CertificateFiles | None = None,
        beside: Sequence[Listener] = (),
        on_start: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(config)
        self._drain = drain
        self._queue = queue
        self._certificate = certificate
        self._renewing: asyncio.Task[None] | None = None
        self._beside = beside
        self._more: list[socket.socket] = []  # descriptors of what listens
        self._on_start = on_start
        self._loop: asyncio.AbstractEventLoop | None = None
        self._draining: asyncio.Task[None] | None = None
        self._stopping: asyncio.Future[list[None]] | None = None  # the listeners beside it

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._loop is None or self._drain.begun:  # not yet serving, or asked twice
            self.should_exit = self.force_exit = True
            return
        self._drain.begun = True
        self._loop.call_soon_threadsafe(self.drain)

    def drain(self) -> None:
        """Begins the end. It goes on listening meanwhile, so that it can say no."""
        self._draining = asyncio.get_running_loop().create_task(self._drain_and_exit())

    async def _drain_and_exit(self) -> None:
        for connection in list(self.server_state.connections):
            # An idle HTTP connection may have a request on its way: it is closed with the next answer, or at the end.
            if isinstance(connection, DrainingSocketProtocol):
                connection.shutdown()
        stopping = self._stop_beside(self._drain.seconds)
        await self._drain.run(lambda: not self.server_state.tasks and stopping.done())
        self.config.timeout_graceful_shutdown = FLUSH_SECONDS
        self.should_exit = True

    def _stop_beside(self, patience: float) -> asyncio.Future[list[None]]:
        if self._stopping is None:
            self._stopping = asyncio.gather(*(listener.stop(patience) for listener in self._beside))
        return self._stopping

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue.watch(sockets or ())
        for listener in self._beside:
            await listener.start()
        self._more = [each.dup() for each in sockets or () for _ in range(DESCRIPTORS - 1)]
        await super().startup(None if sockets is None else [*sockets, *self._more])
        if self._certificate is not None and self.config.ssl is not None:
            self._renewing = asyncio.create_task(keep_renewed(self.config.ssl, self._certificate))
        if self._on_start is not None:
            self._on_start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
        patience = self.config.timeout_graceful_shutdown or 0
        stopping = self._stop_beside(patience)
        self.lifespan = cast(LifespanOn, _LifespanAfter(stopping, self.lifespan))
        await super().shutdown(None if sockets is None else [*sockets, *self._more])
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
    drain_seconds: float = DRAIN_SECONDS,
    tls: TlsConfig | None = None,
    beside: Sequence[Listener] = (),
    on_start: Callable[[], None] | None = None,
) -> ApiServer:
    """A server of `build_app`'s application, to `run(sockets=...)` on sockets that listen. SIGTERM and SIGINT drain
    it: nobody new is admitted, and streams that are open get `drain_seconds` to end. `on_start` is called once all of
    it listens."""
    service: Service = app.state.service
    queue = AcceptQueue()
    protocol = partial(BoundedHttpProtocol, metrics=service.metrics, queue=queue, lag=service.gateway.lag)
    drain = Drain(service, drain_seconds)
    config = uvicorn.Config(
        drain.closing(app),
        http=cast(type[asyncio.Protocol], protocol),  # uvicorn only calls it
        ws=DrainingSocketProtocol,
        ws_max_size=app.state.max_body_bytes + SOCKET_ENVELOPE_BYTES,
        ws_ping_interval=PING_SECONDS,  # finds who has vanished
        ws_ping_timeout=PING_SECONDS,
        ws_per_message_deflate=False,  # a few bytes could become very many
        lifespan="on",
        log_config=None,
        access_log=False,  # the application writes its own, without paths
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=round(drain_seconds),
        **tls_options(tls),
    )
    certificate = None if tls is None else CertificateFiles(tls)
    return ApiServer(config, drain, queue, certificate, beside, on_start)
