"""How a command reaches a host."""

import shlex
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass

LOCAL = "local"
PROBE_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Answer:
    code: int
    out: str
    err: str


Run = Callable[[Sequence[str]], Answer]  # a command of this machine, to its end


@dataclass(frozen=True, slots=True)
class Host:
    """One host, by how it is reached. `name` is for people and for the log's file."""

    name: str
    prefix: tuple[str, ...]  # what stands before a shell command that is to run there
    address: str | None  # as the other hosts reach it; None: it says so itself

    def command(self, script: str) -> list[str]:
        """What to run on this machine so that `script` runs there, in a shell."""
        return [*self.prefix, script]


def local_host(number: int) -> Host:
    return Host(f"{LOCAL}-{number}", ("bash", "-c"), address="127.0.0.1")


def ssh_host(name: str) -> Host:
    """`name` as ssh takes it: a host, USER@HOST, or an alias of its configuration."""
    if name.startswith("-"):
        raise ValueError(f"{name!r} is no name of a host")
    # Without a terminal a question would wait for ever.
    options = ("-o", "BatchMode=yes", "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4")
    return Host(name, ("ssh", *options, name), address=name.rpartition("@")[2])


def tpu_worker(tpu: str, zone: str, project: str | None, worker: int) -> Host:
    where = (f"--zone={zone}", *((f"--project={project}",) if project else ()))
    prefix = ("gcloud", "compute", "tpus", "tpu-vm", "ssh", tpu, *where, f"--worker={worker}", "--command")
    return Host(f"{tpu}-{worker}", prefix, address=None)


def run_here(command: Sequence[str]) -> Answer:
    """Without input, and not for ever."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PROBE_SECONDS, stdin=subprocess.DEVNULL, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Answer(255, "", str(error))
    return Answer(done.returncode, done.stdout, done.stderr)


def shown(command: Sequence[str]) -> str:
    return shlex.join(command)
