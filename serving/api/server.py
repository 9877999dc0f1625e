"""The socket under the application."""

from dataclasses import dataclass

import uvicorn
from starlette.types import ASGIApp

from serving.api.bounded_protocol import BoundedHttpProtocol

KEEP_ALIVE_SECONDS = 75
DRAIN_SECONDS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Listen:
    """Where to listen: a host and port, or a Unix socket's path, or a descriptor of a socket that already listens."""

    host: str = "127.0.0.1"
    port: int = 8000  # 0: any free one
    uds: str | None = None
    fd: int | None = None


def api_server(app: ASGIApp, listen: Listen, *, drain_seconds: int = DRAIN_SECONDS) -> uvicorn.Server:
    """A server to `await serve()` on. SIGTERM and SIGINT stop it: it takes no new connection, and streams that are open
    get `drain_seconds` to end."""
    return uvicorn.Server(
        uvicorn.Config(
            app,
            host=listen.host,
            port=listen.port,
            uds=listen.uds,
            fd=listen.fd,
            http=BoundedHttpProtocol,
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


def run_api(app: ASGIApp, listen: Listen, *, drain_seconds: int = DRAIN_SECONDS) -> None:
    """Serves until a signal."""
    api_server(app, listen, drain_seconds=drain_seconds).run()
