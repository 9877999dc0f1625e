"""The API process: HTTP, text and chat formats, over the engine process's socket. It holds no model."""

import argparse
import asyncio
import socket
from pathlib import Path

from serving.commands.api_key_flag import api_key_of
from serving.commands.argument_types import seconds
from serving.commands.deployment_flags import add_deployment_flags, deployment_from
from serving.commands.supervised import add_lifeline_flag, lifeline_of
from serving.config import ServerConfig
from serving.errors import SetupError
from serving.lifeline import Status

_BACKLOG = 2048


def add_parser(parser: argparse.ArgumentParser) -> None:
    add_deployment_flags(parser, server=True)
    parser.add_argument("--socket", type=Path, required=True, metavar="PATH", help="the engine process's Unix socket")
    parser.add_argument("--drain-seconds", type=seconds, metavar="S", help="at most, on SIGTERM")
    add_lifeline_flag(parser)


def run(args: argparse.Namespace) -> int:
    from serving.api.server import api_server
    from serving.app import build_admin, build_api, build_grpc
    from serving.engine.remote import RemoteEngine
    from serving.engine.resume import ResumingEngine
    from serving.engine.sockets import socket_of
    from serving.observability.logs import configure_logging

    deployment = deployment_from(args)
    configure_logging(deployment.log_format)
    lifeline = lifeline_of(args)
    server = deployment.server
    with _listening(server) as listener:
        remote = RemoteEngine(args.socket)
        further = {
            name: ResumingEngine(RemoteEngine(socket_of(args.socket, number)))
            for number, name in enumerate(deployment.models, start=1)
        }
        app = build_api(deployment, ResumingEngine(remote), api_key_of(args), embedder=remote, further=further)
        if app.state.vector_stores is not None:
            asyncio.run(app.state.vector_stores.check())
        port = listener.getsockname()[1]
        ready = Status("ready", ready=True, url=url_of(server.host, port, tls=server.tls is not None))
        beside = [build_grpc(deployment, app), build_admin(deployment, app)]
        api_server(
            app,
            drain_seconds=server.drain_seconds if args.drain_seconds is None else args.drain_seconds,
            tls=server.tls,
            beside=[listener for listener in beside if listener is not None],
            on_start=lambda: lifeline.report(ready),
        ).run(sockets=[listener])
    return 0


def _listening(server: ServerConfig) -> socket.socket:
    """Bound before anything is loaded, so that a taken port is said at once. Raises SetupError."""
    family = socket.AF_INET6 if ":" in server.host else socket.AF_INET
    try:
        return socket.create_server((server.host, server.port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise SetupError(
            f"cannot listen on {server.host}:{server.port}: {error.strerror or error}", param="port"
        ) from error


def url_of(host: str, port: int, *, tls: bool = False) -> str:
    name = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"{'https' if tls else 'http'}://{name}:{port}"
