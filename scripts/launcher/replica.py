"""The processes that a launch has started, one a host: their logs, and one end for all of them.

Their inputs are kept open. Closing one asks that host to stop (see attached.py); the leader is asked first, because its
streams need the others until they have ended.
"""

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from scripts.launcher.hosts import Host

KILL_SECONDS = 20.0  # after the drain


class Replica:
    """`say(host, line)` hears every line; the folder gets a file for each host."""

    def __init__(self, folder: Path, say: Callable[[str, str], None]) -> None:
        self._folder = folder
        self._say = say
        self._processes: list[tuple[Host, subprocess.Popen[str]]] = []
        self._readers: list[threading.Thread] = []
        self._ended = threading.Condition()

    def start(self, host: Host, command: Sequence[str], token: str) -> None:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C is the launcher's alone, and `kill` ends the whole group
        )
        assert process.stdin is not None
        self._processes.append((host, process))
        reader = threading.Thread(target=self._read, args=(host, process), daemon=True)
        reader.start()
        self._readers.append(reader)
        with contextlib.suppress(BrokenPipeError):  # it has ended already, and `wait` says so
            process.stdin.write(token + "\n")
            process.stdin.flush()

    def wait(self) -> tuple[str, int]:
        """Until the first of them ends: which one, and its exit code."""
        with self._ended:
            while True:
                for host, process in self._processes:
                    if (code := process.poll()) is not None:
                        return host.name, code
                self._ended.wait(timeout=1.0)

    def stop(self, drain_seconds: float) -> dict[str, int]:
        """Asks the leader to end, then the others; kills what does not in time. Exit codes by host."""
        for _, process in self._processes:
            _close(process)
            _wait(process, drain_seconds + KILL_SECONDS)
        return self.kill()

    def kill(self) -> dict[str, int]:
        """Ends what is left. Exit codes by host."""
        for _, process in self._processes:
            _close(process)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # where it is of this machine, what it started too
                process.wait()
        for reader in self._readers:
            reader.join()
        return {host.name: process.returncode for host, process in self._processes}

    def _read(self, host: Host, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        with (self._folder / f"{host.name}.log").open("w", encoding="utf-8") as log:
            for line in process.stdout:
                log.write(line)
                log.flush()
                self._say(host.name, line.rstrip("\n"))
        process.wait()
        with self._ended:
            self._ended.notify_all()


def _close(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it ended first
        process.stdin.close()


def _wait(process: "subprocess.Popen[str]", seconds: float) -> None:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return  # killed once all have been asked
