"""Seconds from `weft serve` to readiness, with an empty cache of compiled programs and with a filled one:
`python -m scripts.bench_start [DEPLOYMENT] [--runs N] [--json FILE]`.

Each run is two servers, one after the other: the first finds an empty cache and fills it, the second reads it. One
server before all runs is not counted: it brings the checkpoint and Python's files into the system's page cache, so that
neither kind of start pays for the disk. Ready is the moment when GET /health/ready answers 200.
"""

import dataclasses
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import httpx
from rich.console import Console
from rich.table import Table

from scripts.flags import flags_of
from serving.commands.argument_types import count, positive
from serving.commands.deployment_flags import add_deployment_flags, deployment_arguments, deployment_from
from serving.errors import ConfigError, EngineUnavailableError, WeftError

PROGRAM = (sys.executable, "-m", "serving", "serve")
STOP_SECONDS = 60.0
ASK_EVERY_SECONDS = 0.02
LAST_LINES = 20
LAST_LINES_SECONDS = 5.0  # for which they are waited for

Kind = Literal["empty cache", "filled cache"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One server's. The engine's share is its own figure: weights and programs, without its process's imports."""

    kind: Kind
    seconds: float  # to readiness
    engine_seconds: float
    programs: int  # that the engine holds, compiled or read
    cache_entries_written: int  # what was compiled and not read; JAX's own small programs among them


def measure(command: Sequence[str], home: Path, kind: Kind, limit_seconds: float) -> Start:
    """Starts one server whose caches are under `home`, waits until it is ready, and stops it.

    Raises EngineUnavailableError with the last lines of its log where it does not get there.
    """
    before = _cache_entries(home)
    begin = time.monotonic()
    with _running(command, home) as log:
        while not log.is_ready():
            if log.ended or time.monotonic() - begin > limit_seconds:
                log.read_on()
                raise EngineUnavailableError("the server did not become ready:\n" + "\n".join(log.lines[-LAST_LINES:]))
            time.sleep(ASK_EVERY_SECONDS)
        seconds = time.monotonic() - begin
        ready = log.event("the engine is ready")
    return Start(
        kind=kind,
        seconds=seconds,
        engine_seconds=ready["seconds"],
        programs=ready["programs"],
        cache_entries_written=len(_cache_entries(home) - before),
    )


class ServerLog:
    """What a server with JSON logs has written so far; read on a thread, so that it never waits for its reader."""

    def __init__(self, server: "subprocess.Popen[str]") -> None:
        self.lines: list[str] = []
        self._server = server
        self.reader = threading.Thread(target=self._read)
        self.reader.start()

    @property
    def ended(self) -> bool:
        return self._server.poll() is not None

    def read_on(self) -> None:
        """Waits for the last lines of a server that has ended, but not for others that it left at its log."""
        if self.ended:
            self.reader.join(LAST_LINES_SECONDS)

    def is_ready(self) -> bool:
        found = self.find("ready")
        if found is None:
            return False
        try:
            return httpx.get(f"{found['url']}/health/ready").status_code == 200
        except httpx.TransportError:
            return False

    def event(self, name: str) -> dict[str, Any]:
        """Raises EngineUnavailableError where the server has not logged it."""
        found = self.find(name)
        if found is None:
            raise EngineUnavailableError(f"the server is ready and has not logged {name!r}")
        return found

    def find(self, name: str) -> dict[str, Any] | None:
        events = (json.loads(line) for line in self.lines if line.startswith("{"))
        return next((event for event in events if event["event"] == name), None)

    def _read(self) -> None:
        assert self._server.stderr is not None
        for line in self._server.stderr:
            self.lines.append(line.rstrip("\n"))


@contextmanager
def _running(command: Sequence[str], home: Path) -> Iterator[ServerLog]:
    server = subprocess.Popen(
        [*command, "--port=0", "--log-format=json"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "HOME": str(home)},
        start_new_session=True,
    )
    log = ServerLog(server)
    try:
        yield log
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        log.reader.join()


def _cache_entries(home: Path) -> set[Path]:
    return set((home / ".cache" / "weft").rglob("*-cache"))


def measure_all(command: Sequence[str], runs: int, limit_seconds: float, console: Console) -> list[Start]:
    starts: list[Start] = []
    with console.status("a start that is not counted") as status:
        with tempfile.TemporaryDirectory() as home:
            measure(command, Path(home), "empty cache", limit_seconds)
        for run in range(runs):
            with tempfile.TemporaryDirectory() as home:
                for kind in ("empty cache", "filled cache"):
                    status.update(f"run {run + 1} of {runs}: {kind}")
                    starts.append(measure(command, Path(home), kind, limit_seconds))
    return starts


def table(starts: Sequence[Start]) -> Table:
    shown = Table(title="seconds to readiness")
    shown.add_column(no_wrap=True)
    for column in ("starts", "median", "least", "most", "engine, median", "programs", "cache entries written"):
        shown.add_column(column, justify="right")
    for kind in dict.fromkeys(start.kind for start in starts):
        of_kind = [start for start in starts if start.kind == kind]
        seconds = [start.seconds for start in of_kind]
        shown.add_row(
            kind,
            str(len(of_kind)),
            f"{statistics.median(seconds):.1f}",
            f"{min(seconds):.1f}",
            f"{max(seconds):.1f}",
            f"{statistics.median(start.engine_seconds for start in of_kind):.1f}",
            _range(start.programs for start in of_kind),
            _range(start.cache_entries_written for start in of_kind),
        )
    return shown


def _range(values: Iterator[int]) -> str:
    found = sorted(set(values))
    return str(found[0]) if len(found) == 1 else f"{found[0]} to {found[-1]}"


def main(argv: Sequence[str] | None = None, program: Sequence[str] = PROGRAM) -> None:
    parser = flags_of(__doc__)
    add_deployment_flags(parser, server=False)
    parser.set_defaults(deployment=None)
    parser.add_argument("--runs", type=count, default=3, metavar="N", help="default: %(default)s")
    parser.add_argument("--limit-seconds", type=positive, default=1800.0, metavar="S", help="of one start")
    parser.add_argument("--json", type=Path, metavar="FILE", help="every start, as JSON")
    args = parser.parse_args(argv)
    if args.deployment is None and args.model is None:
        args.deployment = "demo"
    deployment = deployment_from(args)
    if deployment.engine.compilation_cache is not None:
        raise ConfigError(
            "the deployment sets engine.compilation_cache; leave it out, so that each run can have a cache of its own",
            param="compilation_cache",
        )
    console = Console(stderr=True)
    starts = measure_all([*program, *deployment_arguments(args)], args.runs, args.limit_seconds, console)
    Console().print(table(starts))
    if args.json is not None:
        machine = {"platform": platform.platform(), "cpus": os.cpu_count(), "python": platform.python_version()}
        record = {"deployment": deployment.name, **machine, "starts": [dataclasses.asdict(start) for start in starts]}
        args.json.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    try:
        main()
    except WeftError as error:
        sys.exit(f"bench_start: {error.message}")
