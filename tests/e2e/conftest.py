"""A real `weft serve` of the demo deployment: supervisor, engine process and API process, as a user starts them."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STOP_SECONDS = 180


@dataclass
class ServedDemo:
    process: subprocess.Popen[str]
    url: str
    grpc_address: str

    def child(self, role: str) -> int:
        """The pid of the engine or API process."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        for pid in children:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if command[1:4] == [b"-m", b"serving", role.encode()]:
                return int(pid)
        raise AssertionError(f"no {role} process among {children}")

    def wait_for(self, text: str) -> str:
        """Reads the log until a line has `text`. Fails where the log ends first."""
        assert self.process.stderr is not None
        seen = []
        for line in self.process.stderr:
            seen.append(line)
            if text in line:
                return line
        raise AssertionError(f"{text!r} was not logged:\n{''.join(seen)}")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@pytest.fixture(scope="session")
def served_demo() -> Iterator[ServedDemo]:
    with serving("demo", "--drain-seconds=5") as served:
        yield served


@contextmanager
def serving(deployment: str, *flags: str) -> Iterator[ServedDemo]:
    """From its readiness to its end."""
    port, grpc_port = free_port(), free_port()
    ports = [f"--port={port}", f"--grpc-port={grpc_port}"]
    process = subprocess.Popen(
        [sys.executable, "-m", "serving", "serve", deployment, *ports, *flags],
        cwd=ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        stderr=subprocess.PIPE,
        text=True,
    )
    served = ServedDemo(process, f"http://127.0.0.1:{port}", f"127.0.0.1:{grpc_port}")
    try:
        served.wait_for("ready at")
        yield served
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=STOP_SECONDS)
