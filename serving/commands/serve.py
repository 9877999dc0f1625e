"""`weft serve`: the supervisor over an engine process and an API process."""

import argparse
import asyncio
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from serving.child_process import ChildProcess
from serving.commands.api_key_flag import API_KEY_VARIABLE, add_api_key_flag, api_key_of
from serving.commands.argument_types import seconds
from serving.commands.deployment_flags import add_deployment_flags, deployment_arguments, deployment_from
from serving.commands.serve_report import report_of
from serving.commands.supervised import until_stopped
from serving.config import Deployment
from serving.engine.cluster import cluster_token
from serving.engine.sockets import socket_of
from serving.gateway.identity import check_exposure
from serving.lifeline import Status
from serving.supervisor import API, ENGINE, Supervisor, SupervisorPolicy

_DRAIN_MARGIN_SECONDS = 5.0  # the API process cuts its streams itself; this is for one that hangs


def add_parser(parser: argparse.ArgumentParser) -> None:
    add_deployment_flags(parser, server=True)
    add_api_key_flag(parser)
    parser.add_argument(
        "--drain-seconds",
        type=seconds,
        metavar="S",
        help="on SIGTERM, how long open streams may go on (default: the deployment's, 30)",
    )


def run(args: argparse.Namespace) -> int:
    deployment = deployment_from(args)  # what is wrong with it is said here, once, and not by two children
    api_key = api_key_of(args)
    check_exposure(deployment.access, api_key, deployment.server.host)
    if api_key is not None:
        os.environ[API_KEY_VARIABLE] = api_key  # the API process reads it there, where no `ps` shows it
    if deployment.cluster.processes > 1:
        cluster_token()
    drain = deployment.server.drain_seconds if args.drain_seconds is None else args.drain_seconds
    return asyncio.run(_supervise(args, deployment, drain))


async def _supervise(args: argparse.Namespace, deployment: Deployment, drain_seconds: float) -> int:
    with tempfile.TemporaryDirectory(prefix="weft-") as directory, report_of(deployment.log_format) as report:
        arguments, first = deployment_arguments(args), Path(directory) / "engine.sock"
        engines = _engines(deployment, first)

        async def spawn(role: str, on_status: Callable[[Status], None]) -> ChildProcess:
            name, *own = engines.get(role, [role, "--socket", str(first), f"--drain-seconds={drain_seconds}"])
            command = [sys.executable, "-m", "serving", name, *arguments, *own]
            return await ChildProcess.start(command, lambda line: report.line(role, line), on_status)

        policy = SupervisorPolicy(drain_seconds=drain_seconds + _DRAIN_MARGIN_SECONDS)
        return await until_stopped(Supervisor(spawn, report.event, policy, roles=(*engines, API)))


def _engines(deployment: Deployment, first: Path) -> dict[str, list[str]]:
    """Of each engine's role, the command and what is its own. `first` is the socket of the deployment's first model."""
    commands = {ENGINE: ["engine", "--socket", str(first)]}
    for number, name in enumerate(deployment.models, start=1):
        commands[f"{ENGINE}:{name}"] = ["engine", "--serves", name, "--socket", str(socket_of(first, number))]
    return commands
