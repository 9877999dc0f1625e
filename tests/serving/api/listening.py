"""The API on a real port of this machine, in the test's own event loop."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

from starlette.applications import Starlette

from serving.api.server import api_server
from serving.settings.server import TlsConfig


@contextlib.asynccontextmanager
async def listening(
    app: Starlette, *, drain_seconds: int = 5, send_buffer: int | None = None, tls: TlsConfig | None = None
) -> AsyncIterator[int]:
    """The port. The socket listens before the server starts, so nobody has to wait for it. `send_buffer` bounds the
    bytes that the system holds for a client who does not read."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        if send_buffer is not None:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        server = api_server(app, drain_seconds=drain_seconds, tls=tls)
        server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign] -- pytest's own stay in force
        task = asyncio.ensure_future(server.serve(sockets=[listener]))
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            await task
