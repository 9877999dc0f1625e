"""The engine process of a host that does not lead: it loads its share of the model and runs the leader's plans."""

import argparse
import logging
import signal
from types import FrameType

from serving.commands.argument_types import count
from serving.commands.deployment_flags import add_deployment_flags, deployment_from
from serving.commands.engine import code_of, end_at_once, end_with_lost_host, quiet_jax
from serving.commands.follower import check_process
from serving.commands.supervised import Reports, add_lifeline_flag, lifeline_of
from serving.config import Deployment
from serving.engine.cluster import cluster_token, runs_here
from serving.engine.follower import join
from serving.lifeline import Status
from serving.observability.logs import configure_logging, log_event

log = logging.getLogger(__name__)


def add_parser(parser: argparse.ArgumentParser) -> None:
    add_deployment_flags(parser, server=True)
    parser.add_argument("--process-id", type=count, required=True, metavar="N", help="which of the hosts this is")
    add_lifeline_flag(parser)


def run(args: argparse.Namespace) -> int:
    deployment = deployment_from(args)
    check_process(deployment, args.process_id)
    configure_logging(deployment.log_format)
    quiet_jax()
    lifeline = lifeline_of(args)
    end_at_once(code_of(lambda: _follow(deployment, args.process_id, lifeline)))


def _follow(deployment: Deployment, process: int, lifeline: Reports) -> int:
    from serving.app import run_follower, window_of  # here, because it loads JAX in the end

    signal.signal(signal.SIGTERM, _end_without_a_leader)
    membership = join(
        deployment.cluster.coordinator or "",
        process,
        cluster_token(),
        runs_here(deployment, window_of(deployment)),
        lambda text: lifeline.report(Status(text)),
    )
    signal.signal(signal.SIGTERM, _end_with_the_leader)
    membership.watch(end_with_lost_host)

    def ready() -> None:
        log_event(log, "the follower is ready", process=process, leader=deployment.cluster.coordinator)
        lifeline.report(Status("ready", ready=True))

    run_follower(
        deployment,
        process,
        membership,
        lambda text, done, total: lifeline.report(Status(text, done, total)),
        ready,
    )
    membership.leave()
    return 0


def _end_without_a_leader(number: int, frame: FrameType | None) -> None:
    end_at_once(0)


def _end_with_the_leader(number: int, frame: FrameType | None) -> None:
    """All hosts are stopped together, as a rule, and the leader's streams need this one until they have ended."""
    log_event(log, "waiting for the leader to end")
