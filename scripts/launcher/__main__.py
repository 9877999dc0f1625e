"""scripts/launch_gpu and scripts/launch_tpu_pod: [flags] DEPLOYMENT [weft serve's flags]."""

import argparse
import math
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from scripts.launcher.checks import Findings, check, facts_of
from scripts.launcher.commands import Cluster, Installation, probe_command, weft_command
from scripts.launcher.hosts import LOCAL, Host, Run, local_host, run_here, shown, ssh_host, tpu_worker
from scripts.launcher.replica import Replica
from serving.cli import build_parser
from serving.commands.deployment_flags import deployment_from
from serving.config import Deployment
from serving.engine.cluster import TOKEN_VARIABLE
from serving.errors import WeftError

ROOT = Path(__file__).resolve().parents[2]
COORDINATOR_PORT = 7200
EXIT_REFUSED = 1
_ASKED_AT_ONCE = 16


def main(argv: Sequence[str], run: Run = run_here) -> int:
    args = launch_parser().parse_args(argv)
    if not args.arguments:
        return _refused("name a deployment, and after it any flags of weft serve")
    try:
        serve = build_parser("serve").parse_args(["serve", *args.arguments])
        deployment = deployment_from(serve)
        hosts = hosts_of(args)
    except (WeftError, ValueError) as error:
        return _refused(str(error))
    launch = Launch(args, deployment, hosts, serve.drain_seconds, run)
    if args.dry_run:
        launch.show()
        return 0
    return launch.go()


def launch_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--kind", choices=("gpu", "tpu", "cpu"), required=True, help="of the devices")
    parser.add_argument("--hosts", default=LOCAL, metavar="A,B", help="as ssh takes them; local: this machine")
    parser.add_argument("--tpu", metavar="NAME", help="a slice, reached by gcloud, instead of --hosts")
    parser.add_argument("--zone", help="of the slice")
    parser.add_argument("--project", help="of the slice; default: gcloud's")
    parser.add_argument("--workers", type=int, metavar="N", help="hosts of the slice")
    parser.add_argument("--directory", metavar="DIR", help="where this repository lies on each host (default: weft)")
    parser.add_argument("--python", default=".venv/bin/python", help="from there (default: %(default)s)")
    parser.add_argument("--coordinator-port", type=int, default=COORDINATOR_PORT, metavar="N")
    parser.add_argument("--logs", type=Path, default=Path("logs"), metavar="DIR", help="one folder in it a launch")
    parser.add_argument("--dry-run", action="store_true", help="show what would be run where; run nothing")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="DEPLOYMENT [weft serve's flags]")
    return parser


def hosts_of(args: argparse.Namespace) -> tuple[Host, ...]:
    """Raises ValueError for flags that name no hosts."""
    if args.tpu:
        if not args.zone or not args.workers or args.workers < 1:
            raise ValueError("--tpu NAME goes with --zone ZONE and --workers N, the number of the slice's hosts")
        return tuple(tpu_worker(args.tpu, args.zone, args.project, worker) for worker in range(args.workers))
    names = [name.strip() for name in args.hosts.split(",") if name.strip()]
    if not names:
        raise ValueError("--hosts names no host")
    if len(set(names)) < len(names) and set(names) != {LOCAL}:
        raise ValueError(f"--hosts names one host twice: {args.hosts}")
    if LOCAL in names and set(names) != {LOCAL}:
        raise ValueError("--hosts mixes local with other hosts: give this machine the name that the others know")
    return tuple(local_host(i) if name == LOCAL else ssh_host(name) for i, name in enumerate(names))


class Launch:
    """One deployment on its hosts."""

    def __init__(
        self,
        args: argparse.Namespace,
        deployment: Deployment,
        hosts: tuple[Host, ...],
        drain_seconds: float,
        run: Run,
    ) -> None:
        self._args = args
        self._deployment = deployment
        self._hosts = hosts
        self._drain_seconds = drain_seconds
        self._run = run
        directory = args.directory or (str(ROOT) if hosts[0].address == "127.0.0.1" else "weft")
        self._installation = Installation(directory, args.python)

    def show(self) -> None:
        cluster = self._cluster(self._hosts[0].address or "ADDRESS-OF-WORKER-0")
        for process, host in enumerate(self._hosts):
            print(f"{host.name}: is asked\n    {shown(self._probe(process, 'MARK'))}")
        for process, host in enumerate(self._hosts):
            print(f"{host.name}: runs\n    {shown(self._weft(cluster, process))}")
        if len(self._hosts) > 1:
            print(f"The first line of each one's input is {TOKEN_VARIABLE}: yours, or one made for this launch.")
        print(f"Logs would be gathered in {self._args.logs}/, a file for each host.")

    def go(self) -> int:
        facts, findings = self._ask()
        for host, text in findings.warnings:
            print(f"{host}: warning: {text}", file=sys.stderr)
        for host, text in findings.problems:
            print(f"{host + ': ' if host else ''}{text}", file=sys.stderr)
        if findings.problems:
            return _refused("nothing was started")
        address = self._hosts[0].address or facts[self._hosts[0].name]["address"]
        return self._start(self._cluster(address))

    def _cluster(self, address: str) -> Cluster:
        return Cluster(self._hosts, address, self._args.coordinator_port)

    def _weft(self, cluster: Cluster, process: int) -> list[str]:
        return weft_command(self._installation, cluster, process, self._args.arguments)

    def _probe(self, process: int, mark: str) -> list[str]:
        cache = self._deployment.engine.compilation_cache or Path("~/.cache/weft/compilation")
        ports = [] if process else [port for port in (self._deployment.server.port, self._coordinator_port()) if port]
        marks = f"--look-for={mark}" if process else f"--mark={mark}"
        host = self._hosts[process]
        return probe_command(self._installation, host, self._args.kind, ports, f"--cache={cache}", marks)

    def _coordinator_port(self) -> int | None:
        return self._args.coordinator_port if len(self._hosts) > 1 else None

    def _ask(self) -> tuple[dict[str, Any], Findings]:
        """The leader first: it leaves a mark beside its compiled programs, for which the others look."""
        mark = f"launch-{secrets.token_hex(8)}"
        answers = [facts_of(self._run(self._probe(0, mark)))]
        with ThreadPoolExecutor(_ASKED_AT_ONCE) as threads:
            others = range(1, len(self._hosts))
            answers += threads.map(lambda process: facts_of(self._run(self._probe(process, mark))), others)
        facts = {host.name: answer for host, answer in zip(self._hosts, answers, strict=True)}
        mesh = self._deployment.mesh
        devices = math.prod((mesh.data, mesh.pipeline, mesh.expert, mesh.tensor))
        return facts, check(facts, self._args.kind, devices)

    def _start(self, cluster: Cluster) -> int:
        folder = self._args.logs / f"{self._deployment.name}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
        folder.mkdir(parents=True)
        print(f"logs are gathered in {folder}", file=sys.stderr)
        token = os.environ.get(TOKEN_VARIABLE) or secrets.token_hex(32)
        replica = Replica(folder, _say(max(len(host.name) for host in self._hosts)))
        stopped = _Stopped()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, stopped.now)
        name, code = "", 0
        try:
            for process, host in enumerate(self._hosts):
                replica.start(host, self._weft(cluster, process), token if len(self._hosts) > 1 else "")
            name, code = replica.wait()
            print(f"{name} has ended with exit code {code}: the others are stopped", file=sys.stderr)
        except _StopAsked:
            print("stopping: open streams end first", file=sys.stderr)
        stopped.again = True  # a second one kills
        try:
            codes = replica.stop(self._drain_seconds)
        except _StopAsked:
            codes = replica.kill()
        return code or next((other for other in codes.values() if other), 0)


class _StopAsked(Exception):
    """Ctrl-C, or SIGTERM."""


class _Stopped:
    """Turns the signals into an exception in the main thread: once while weft runs, and once while it stops."""

    def __init__(self) -> None:
        self.again = False
        self._asked = 0

    def now(self, *_: object) -> None:
        self._asked += 1
        if self._asked == 1 or self.again:
            raise _StopAsked


def _say(width: int) -> Callable[[str, str], None]:
    return lambda host, line: print(f"{host:>{width}} | {line}", file=sys.stderr, flush=True)


def _refused(text: str) -> int:
    print(f"launch: {text}", file=sys.stderr)
    return EXIT_REFUSED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
