"""The socket under the application."""

import asyncio
from functools import partial
from typing import cast

import uvicorn
from starlette.applications import Starlette

from serving.api.bounded_protocol import BoundedHttpProtocol
from serving.api.service import Service

KEEP_ALIVE_SECONDS = 75
DRAIN_SECONDS = 30


def api_server(app: Starlette, *, drain_seconds: int = DRAIN_SECONDS) -> uvicorn.Server:
    """A server of `build_app`'s application, to `run(sockets=...)` on sockets that listen. SIGTERM and SIGINT stop it:
    it takes no new connection, and streams that are open get `drain_seconds` to end."""
    service: Service = app.state.service
    protocol = partial(BoundedHttpProtocol, metrics=service.metrics)
    return uvicorn.Server(
        uvicorn.Config(
            app,
            http=cast(type[asyncio.Protocol], protocol),  # uvicorn only calls it
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,  # the application writes its own, without paths
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=drain_seconds,
        )
    )
