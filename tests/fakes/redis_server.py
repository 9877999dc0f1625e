"""A real redis-server on a Unix socket, without persistence, which a test may kill and start again."""

import subprocess
import time
from pathlib import Path

import redis

PATIENCE = 120.0  # seconds; only a broken test waits that long


class RedisServer:
    """`folder` must have a short path: a Unix socket's is limited."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"unix://{folder / 'redis.sock'}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Returns once it answers."""
        options = "--port 0 --unixsocket redis.sock --save".split()
        self._process = subprocess.Popen(
            ["redis-server", *options, "", "--appendonly", "no", "--dir", "."],
            cwd=self._folder,
            stdout=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + PATIENCE
        with redis.Redis.from_url(self.url) as client:
            while True:
                try:
                    client.ping()
                    return
                except redis.ConnectionError:
                    assert time.monotonic() < deadline, "redis-server does not answer"
                    assert self._process.poll() is None, "redis-server ended"
                    time.sleep(0.01)

    def kill(self) -> None:
        """At once, and with all that it held."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
