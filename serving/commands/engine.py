"""The engine process: loads the model, compiles its programs, and serves token streams on a Unix socket.

With other hosts it is their leader: what they run, it sends them.
"""

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from serving.commands.deployment_flags import add_deployment_flags, deployment_from
from serving.commands.supervised import Reports, add_lifeline_flag, lifeline_of
from serving.config import Deployment
from serving.engine.client import Engine
from serving.engine.cluster import address_to_listen_on, cluster_token, runs_here
from serving.engine.leader import Leader, Progress
from serving.engine.local import LocalEngine
from serving.engine.server import EngineServer
from serving.errors import SetupError
from serving.lifeline import Status
from serving.observability.crash_report import write_crash_report
from serving.observability.logs import configure_logging, log_event
from serving.supervisor import EXIT_HOST_LOST, EXIT_SETUP

EXIT_ENGINE_FAILED = 70  # sysexits.h: an internal software error

log = logging.getLogger(__name__)


def add_parser(parser: argparse.ArgumentParser) -> None:
    add_deployment_flags(parser, server=True)  # it does not listen, but takes what the supervisor was given
    parser.add_argument("--socket", type=Path, required=True, metavar="PATH", help="the Unix socket to serve on")
    parser.add_argument("--serves", metavar="NAME", help="which of the deployment's models (default: its first)")
    add_lifeline_flag(parser)


def run(args: argparse.Namespace) -> int:
    from serving.app import build_engine  # here, because it loads JAX, which no other command should wait for

    deployment = deployment_from(args)
    deployment = deployment.of_model(args.serves or deployment.name)
    configure_logging(deployment.log_format)
    quiet_jax()
    lifeline = lifeline_of(args)
    lifeline.report(Status("loading weights"))
    failed = Failed()

    def progress(text: str, done: int, total: int) -> None:
        lifeline.report(Status(text, done, total))

    if deployment.cluster.processes > 1:
        end_at_once(code_of(lambda: _lead(deployment, args.socket, lifeline, progress, failed)))
    engine = build_engine(deployment, progress, failed.set)
    code = asyncio.run(serve(engine, args.socket, lifeline, failed, crash_reporter(deployment, engine)))
    if code == EXIT_ENGINE_FAILED:
        end_at_once(code)
    return code


def _lead(deployment: Deployment, socket_path: Path, lifeline: Reports, progress: Progress, failed: "Failed") -> int:
    from serving.app import build_engine, window_of

    cluster = deployment.cluster
    runs = runs_here(deployment, window_of(deployment))
    leader = Leader(address_to_listen_on(cluster), cluster.processes, cluster_token(), runs, end_with_lost_host)
    leader.start()
    engine = build_engine(deployment, progress, failed.set, leader)
    code = asyncio.run(serve(engine, socket_path, lifeline, failed, crash_reporter(deployment, engine)))
    if code == 0:  # else the followers see this process end, and wait for the next
        leader.close()
    return code


def crash_reporter(deployment: Deployment, engine: Engine) -> Callable[[BaseException], None]:
    """Leaves a crash report of a failed engine."""

    def report(error: BaseException) -> None:
        sizes = engine.post_mortem() if isinstance(engine, LocalEngine) else {}
        try:
            path = write_crash_report(deployment.engine.crash_reports, "engine", error, sizes)
        except OSError as failure:
            log_event(log, "no crash report could be written", level=logging.WARNING, reason=failure.strerror)
        else:
            log_event(log, "a crash report was written", level=logging.WARNING, path=str(path))

    return report


def end_with_lost_host(why: str) -> None:
    """What waits for another host on a device never returns: the process ends where it stands."""
    log_event(log, "a host was lost", level=logging.WARNING, reason=why)
    end_at_once(EXIT_HOST_LOST)


def code_of(run: Callable[[], int]) -> int:
    """The exit code, whatever happens. For processes whose ordinary end JAX would hold up, to wait for the others."""
    try:
        return run()
    except SetupError as error:
        print(f"weft: {error.message}", file=sys.stderr)
        return EXIT_SETUP
    except BaseException:  # ends the process, as it would unhandled
        log.exception("the process failed")
        return EXIT_ENGINE_FAILED


def quiet_jax() -> None:
    """Keeps JAX's search for backends ("Unable to initialize backend 'tpu'") out of the log.

    Not by the logger "jax": where that has a level before JAX is imported, JAX adds a handler of its own to it, and
    every warning would come twice.
    """
    logging.getLogger("jax._src").setLevel(logging.WARNING)


def end_at_once(code: int) -> NoReturn:
    """Ends this process without the interpreter's own end, which waits for the device: where a step hangs, that would
    be for ever, and nobody would start another engine."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class Failed:
    """Carries the engine thread's failure to the event loop, whichever of the two comes first."""

    def __init__(self) -> None:
        self._error: BaseException | None = None
        self._wake: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    def set(self, error: BaseException) -> None:
        self._error = error
        if self._wake is not None:
            loop, event = self._wake
            loop.call_soon_threadsafe(event.set)

    async def wait(self) -> BaseException:
        event = asyncio.Event()
        self._wake = (asyncio.get_running_loop(), event)
        if self._error is None:
            await event.wait()
        assert self._error is not None
        return self._error


async def serve(
    engine: Engine,
    socket_path: Path,
    lifeline: Reports,
    failed: Failed,
    on_crash: Callable[[BaseException], None] = lambda _: None,
) -> int:
    """Until SIGTERM, or until the engine fails: then `on_crash` is told, this process ends, and the supervisor starts
    another."""
    local = engine if isinstance(engine, LocalEngine) else None
    embedders = {} if local is None else {"embedder": local.embedder, "model_embedder": local.model_embedder}
    server = EngineServer(engine, socket_path, **embedders)
    await server.start()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    info = await engine.info()
    log_event(
        log,
        "the engine is ready",
        programs=info.programs_compiled,
        pages=info.num_pages,
        max_model_len=info.max_model_len,
        seconds=round(info.startup_seconds, 1),
    )
    lifeline.report(Status("ready", ready=True))
    waits = [asyncio.create_task(stopped.wait()), asyncio.create_task(failed.wait())]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    await server.stop()
    if not stopped.is_set():
        on_crash(await failed.wait())
        return EXIT_ENGINE_FAILED
    await engine.close()
    return 0
