"""`weft follower`: the supervisor of one host of a model that several hold, beside `weft serve` on the first of them.

It takes the flags of `weft serve`, so that all hosts can be started alike; it listens nowhere.
"""

import argparse
import asyncio
import sys
from collections.abc import Callable

from serving.child_process import ChildProcess
from serving.commands.argument_types import count, seconds
from serving.commands.deployment_flags import add_deployment_flags, deployment_arguments, deployment_from
from serving.commands.serve_report import report_of
from serving.commands.supervised import until_stopped
from serving.config import Deployment
from serving.engine.cluster import cluster_token
from serving.errors import ConfigError
from serving.lifeline import Status
from serving.settings.server import DRAIN_SECONDS
from serving.supervisor import Supervisor, SupervisorPolicy

_LEADER_SECONDS = 15.0  # beyond the drain: how long the leader's own end may take


def add_parser(parser: argparse.ArgumentParser) -> None:
    add_deployment_flags(parser, server=True)
    parser.add_argument(
        "--process-id", type=count, required=True, metavar="N", help="which of the hosts this is; weft serve is 0"
    )
    parser.add_argument(
        "--drain-seconds",
        type=seconds,
        default=DRAIN_SECONDS,
        metavar="S",
        help="the leader's: on SIGTERM, how long it is given to end first (default: %(default)g)",
    )


def run(args: argparse.Namespace) -> int:
    deployment = deployment_from(args)
    check_process(deployment, args.process_id)
    cluster_token()
    return asyncio.run(_supervise(args, deployment))


def check_process(deployment: Deployment, process: int) -> None:
    """Raises ConfigError where the cluster has no such follower."""
    processes = deployment.cluster.processes
    if process >= processes:
        right = f"--process-id is 1 .. {processes - 1}" if processes > 1 else "set cluster.processes"
        raise ConfigError(f"a cluster of {processes} has no process {process}: {right}", param="process_id")


async def _supervise(args: argparse.Namespace, deployment: Deployment) -> int:
    with report_of(deployment.log_format) as report:
        command = [sys.executable, "-m", "serving", "follow", *deployment_arguments(args)]
        command.append(f"--process-id={args.process_id}")

        async def spawn(role: str, on_status: Callable[[Status], None]) -> ChildProcess:
            return await ChildProcess.start(command, lambda line: report.line(role, line), on_status)

        policy = SupervisorPolicy(drain_seconds=args.drain_seconds + _LEADER_SECONDS, ends_with_child=True)
        return await until_stopped(Supervisor(spawn, report.event, policy, roles=("follower",)))
