"""A real Redis, on a Unix socket of its own."""

import shutil
import signal
import subprocess
from pathlib import Path

import redis

_PATIENCE_SECONDS = 120


class RedisServer:
    """`path` must be short: a socket's name has about a hundred bytes."""

    def __init__(self, folder: Path) -> None:
        self._socket = folder / "redis.sock"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"unix://{self._socket}"

    def start(self) -> None:
        program = shutil.which("redis-server")
        assert program is not None, "these tests need redis-server on the PATH (Debian: redis-server)"
        # No file is written and no port is open: what it knows ends with it.
        self._process = subprocess.Popen(
            [program, "--port", "0", "--unixsocket", str(self._socket), "--save", "", "--appendonly", "no"],
            stdout=subprocess.DEVNULL,
            cwd=self._socket.parent,
        )
        policy = redis.retry.Retry(redis.backoff.ConstantBackoff(0.02), _PATIENCE_SECONDS * 50)
        with redis.Redis.from_url(self.url, retry=policy, retry_on_error=[redis.ConnectionError]) as client:
            assert client.ping()

    def stop(self, how: signal.Signals = signal.SIGKILL) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(_PATIENCE_SECONDS)
            self._process = None
