"""The API on a real port of this machine, in the test's own event loop."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.types import ASGIApp

from serving.api.server import Listen, api_server


@asynccontextmanager
async def listening(app: ASGIApp, *, drain_seconds: int = 5) -> AsyncIterator[int]:
    """The port. The socket listens before the server starts, so nobody has to wait for it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = api_server(app, Listen(), drain_seconds=drain_seconds)
        task = asyncio.ensure_future(server.serve(sockets=[listener]))
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            await task
