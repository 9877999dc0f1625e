"""Supervisors and their children: what is common to those that `serve` starts and to the one of `follower`."""

import argparse
import asyncio
import logging
import signal
from typing import Protocol

from serving.lifeline import Lifeline, Status
from serving.observability.logs import log_event
from serving.supervisor import Supervisor

log = logging.getLogger(__name__)


class Unsupervised:
    """Started by hand: progress goes to the log, once for each new thing."""

    def __init__(self) -> None:
        self._last = ""

    def report(self, status: Status) -> None:
        if status.text != self._last:
            log_event(log, status.text)
        self._last = status.text


class Reports(Protocol):
    """Where a child says what it is doing."""

    def report(self, status: Status) -> None: ...


def add_lifeline_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--lifeline", type=int, metavar="FD", help="the supervisor's end, an open file descriptor")


def lifeline_of(args: argparse.Namespace) -> Reports:
    """Already watching: from here on this process ends with its supervisor."""
    if args.lifeline is None:
        return Unsupervised()
    lifeline = Lifeline(args.lifeline)
    lifeline.watch()
    return lifeline


async def until_stopped(supervisor: Supervisor) -> int:
    """Runs it until SIGTERM, SIGINT, or a SIGHUP that nohup does not keep away; a second one kills. Returns the exit
    code."""
    loop = asyncio.get_running_loop()
    is_kept_away = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    for number in (signal.SIGTERM, signal.SIGINT, *(() if is_kept_away else (signal.SIGHUP,))):
        loop.add_signal_handler(number, supervisor.stop)
    return await supervisor.run()
