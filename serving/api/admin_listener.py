"""The admin application's socket, in the event loop of the API process: it begins and ends with the public one."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterator
from functools import partial
from typing import cast

import uvicorn
from starlette.applications import Starlette

from serving.api.bounded_protocol import BoundedHttpProtocol
from serving.errors import SetupError
from serving.observability.logs import log_event
from serving.observability.metrics import Metrics

_GRACE_SECONDS = 5  # its requests are short
_BACKLOG = 64

logger = logging.getLogger(__name__)


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The public server's alone."""
        yield


class AdminListener:
    def __init__(self, app: Starlette, metrics: Metrics, host: str, port: int) -> None:
        self.port = port  # with 0: the one that was found, from `start` on
        self._host = host
        protocol = partial(BoundedHttpProtocol, metrics=metrics)
        self._server = _Server(
            uvicorn.Config(
                app,
                http=cast(type[asyncio.Protocol], protocol),  # uvicorn only calls it
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=_GRACE_SECONDS,
            )
        )
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Raises SetupError."""
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        try:
            listener = socket.create_server((self._host, self.port), family=family, backlog=_BACKLOG)
        except OSError as error:
            raise SetupError(
                f"cannot listen on {self._host}:{self.port}: {error.strerror or error}", param="admin.port"
            ) from error
        self.port = listener.getsockname()[1]
        self._serving = asyncio.create_task(self._server.serve(sockets=[listener]))
        log_event(logger, "listening", protocol="HTTP for administration", port=self.port)

    async def stop(self, patience: float) -> None:
        """What runs here is short, so that no patience is needed."""
        self._server.should_exit = True
        if self._serving is not None:
            await self._serving
