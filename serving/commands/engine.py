"""The engine process: loads the model, compiles its programs, and serves token streams on a Unix socket."""

import argparse
import asyncio
import logging
import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

from serving.commands.deployment_flags import add_deployment_flags, deployment_from
from serving.commands.supervised import Reports, add_lifeline_flag, lifeline_of
from serving.engine.client import Engine
from serving.engine.server import EngineServer
from serving.lifeline import Status
from serving.observability.logs import configure_logging, log_event

EXIT_ENGINE_FAILED = 70  # sysexits.h: an internal software error

log = logging.getLogger(__name__)


def add_parser(parser: argparse.ArgumentParser) -> None:
    add_deployment_flags(parser, server=True)  # it does not listen, but takes what the supervisor was given
    parser.add_argument("--socket", type=Path, required=True, metavar="PATH", help="the Unix socket to serve on")
    add_lifeline_flag(parser)


def run(args: argparse.Namespace) -> int:
    from serving.app import build_engine  # here, because it loads JAX, which no other command should wait for

    deployment = deployment_from(args)
    configure_logging(deployment.log_format)
    quiet_jax()
    lifeline = lifeline_of(args)
    lifeline.report(Status("loading weights"))
    failed = Failed()
    engine = build_engine(
        deployment,
        progress=lambda text, done, total: lifeline.report(Status(text, done, total)),
        on_failure=failed.set,
    )
    code = asyncio.run(serve(engine, args.socket, lifeline, failed))
    if code == EXIT_ENGINE_FAILED:
        end_at_once(code)
    return code


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


async def serve(engine: Engine, socket_path: Path, lifeline: Reports, failed: Failed) -> int:
    """Until SIGTERM, or until the engine fails: then this process ends, and the supervisor starts another."""
    server = EngineServer(engine, socket_path)
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
        return EXIT_ENGINE_FAILED
    await engine.close()
    return 0
