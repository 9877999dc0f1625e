"""A real `weft serve` of its own: supervisor, engine process and API process, with a log of streams."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 600.0
STOP_SECONDS = 120.0
DEPLOYMENT = """\
name = "weft-demo"
[model]
checkpoint = "{checkpoint}"
dtype = "float32"
[engine]
max_num_seqs = {streams}
max_num_batched_tokens = 256
cache_bytes = 268_435_456
[server]
port = 0
max_streams = 1024
[streams]
{log}
"""


class Served:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: deque[str] = deque(maxlen=200)
        self.url = ""
        self._ready = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not self._ready.wait(0.1):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("the server did not get ready:\n" + "".join(self.lines))

    def child(self, role: str) -> int:
        """The pid of the engine or API process that runs now."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
            for pid in children:
                command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if command[1:4] == [b"-m", b"serving", role.encode()]:
                    return int(pid)
            time.sleep(0.05)
        raise RuntimeError(f"there is no {role} process")

    def metric(self, name: str, label: str = "") -> float:
        """The sum of a metric's samples, of those with `label` (name="value")."""
        text = httpx.get(f"{self.url}/metrics", timeout=60).text
        samples = re.findall(rf"^{re.escape(name)}((?:\{{.*\}})?) (\S+)$", text, re.MULTILINE)
        return sum(float(value) for labels, value in samples if label in labels)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            found = re.search(r"ready at (http://\S+)", line)
            if found:
                self.url = found[1]
                self._ready.set()


@contextmanager
def served(
    folder: Path,
    log: str,
    *,
    streams: int = 32,
    port: int = 0,
    tables: str = "",
    flags: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Iterator[Served]:
    """Runs until the end of the block. `log` is the text of the deployment's table `streams`, `tables` of more of them;
    `environment` is beside this process's own."""
    checkpoint = ROOT / "configs" / "checkpoints" / "demo"
    file = folder / "deployment.toml"
    file.write_text(DEPLOYMENT.format(checkpoint=checkpoint, log=log, streams=streams) + tables)
    command = [sys.executable, "-m", "serving", "serve", str(file), f"--port={port}", "--drain-seconds=5", *flags]
    variables = {**os.environ, "JAX_PLATFORMS": "cpu", **(environment or {})}
    process = subprocess.Popen(command, cwd=ROOT, env=variables, stderr=subprocess.PIPE, text=True)
    server = Served(process)
    try:
        server.wait_until_ready()
        yield server
    finally:
        server.stop()
