"""What is run where: one shell command a host, the same whether it is shown or run."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from scripts.launcher.hosts import Host


@dataclass(frozen=True, slots=True)
class Installation:
    """Where weft lies on every host."""

    directory: str  # a clone of this repository
    python: str  # of its environment, from there

    def script(self, module: str, *arguments: str) -> str:
        return f"cd {shlex.quote(self.directory)} && exec {shlex.quote(self.python)} -m {module} " + shlex.join(
            arguments
        )


@dataclass(frozen=True, slots=True)
class Cluster:
    hosts: tuple[Host, ...]  # the leader first; on a TPU slice by the workers' numbers
    address: str  # of the leader, as the others reach it
    port: int

    def flags(self, process: int) -> list[str]:
        """None for a single host."""
        if len(self.hosts) == 1:
            return []
        shared = [f"--processes={len(self.hosts)}", f"--coordinator={_authority(self.address, self.port)}"]
        return shared + ([f"--process-id={process}"] if process else [])


def probe_command(installation: Installation, host: Host, kind: str, ports: Sequence[int], *more: str) -> list[str]:
    arguments = [f"--kind={kind}", *more]
    if ports:
        arguments += ["--ports", *map(str, ports)]
    return host.command(installation.script("scripts.launcher.probe", *arguments))


def weft_command(installation: Installation, cluster: Cluster, process: int, arguments: Sequence[str]) -> list[str]:
    """`weft serve` for process 0, `weft follower` for the others, under `attached`."""
    role = "follower" if process else "serve"
    weft = [installation.python, "-m", "serving", role, *arguments, *cluster.flags(process)]
    return cluster.hosts[process].command(installation.script("scripts.launcher.attached", "--", *weft))


def _authority(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
