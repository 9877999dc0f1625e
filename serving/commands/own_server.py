"""A server for one command: started on a free port, and stopped with it."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

import httpx
from rich.console import Console

from serving.commands.api import url_of
from serving.commands.api_key_flag import API_KEY_VARIABLE
from serving.errors import EngineUnavailableError, SetupError

_STOP_SECONDS = 15.0
_ASK_EVERY_SECONDS = 0.1
_PROGRAM = (sys.executable, "-m", "serving", "serve")


@contextmanager
def own_server(
    deployment_arguments: Sequence[str], host: str, console: Console, program: Sequence[str] = _PROGRAM
) -> Iterator[str]:
    """Yields the url once it is ready. `host` is the one that the deployment listens on.

    Raises EngineUnavailableError with the log's end where it does not get there, SetupError for a host that is not
    this machine's.
    """
    port = _free_port(host)
    command = [*program, *deployment_arguments, f"--port={port}"]
    with tempfile.TemporaryFile() as log, _signals_raised():
        # A session of its own: Ctrl-C stops an answer, not the server.
        # It is for this command alone, which is asked for no key.
        environment = {name: value for name, value in os.environ.items() if name != API_KEY_VARIABLE}
        server = subprocess.Popen(
            command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True, env=environment
        )
        try:
            with console.status("starting the server"):
                url = url_of(host, port)
                while not _is_ready(url):
                    if server.poll() is not None:
                        log.seek(0)
                        raise EngineUnavailableError(
                            f"the server did not start:\n{log.read().decode(errors='replace')}"
                        )
                    time.sleep(_ASK_EVERY_SECONDS)
            yield url
        finally:
            server.send_signal(signal.SIGTERM)
            try:
                server.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


@contextmanager
def _signals_raised() -> Iterator[None]:
    """SIGTERM, and the SIGHUP of a terminal that is closed, would end this process at once, and leave a server behind
    that nobody knows of. Here they are SystemExit, with the code that shells give such an end."""

    def end(number: int, _: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    taken = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health/ready", trust_env=False).status_code == 200  # no proxy leads to this machine
    except httpx.TransportError:
        return False


def _free_port(host: str) -> int:
    try:
        with socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as found:
            return found.getsockname()[1]
    except OSError as error:
        raise SetupError(f"cannot listen on {host}: {error.strerror or error}", param="host") from error
