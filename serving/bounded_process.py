"""A child process for work that no limit inside this one can stop: one long C call, one that eats memory, one that
crashes. It is asked over a pipe, answers in JSON, and is killed where it does not answer in time.

The child is a bare script: it gets an empty environment without secrets, reads requests on stdin and writes answers on
stdout, each a length of four bytes and JSON, and sets its own limits on memory and CPU time.
"""

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Ask = Callable[[dict[str, Any], float], dict[str, Any]]

_ENDING = 5.0  # seconds for a child that has closed its pipe to be gone


class ProcessEndedError(EOFError):
    """The child ended instead of answering. `status` is what it exited with, or the signal that ended it as a negative
    number; None where it lived on behind closed pipes, and was killed for it."""

    def __init__(self, status: int | None) -> None:
        super().__init__(f"the process ended with status {status}")
        self.status = status


class BoundedProcess:
    """Started when it is first asked, and again after it was ended. One caller at a time."""

    def __init__(self, script: Path, arguments: Sequence[str], prepare: Callable[[Ask], None]) -> None:
        """`prepare` tells a child that has just been started what it has to know before the first question."""
        self._command = [sys.executable, "-I", str(script), *arguments]
        self._prepare = prepare
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Does nothing where the child runs. Raises what `prepare` raises."""
        if self._process is not None and self._process.poll() is None:
            return
        self.end()
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={name: os.environ[name] for name in ("TZ", "LD_LIBRARY_PATH") if name in os.environ},
            cwd="/",
            start_new_session=True,  # an interrupt from the terminal is for the parent; the child ends with its pipe
        )
        self._prepare(self._exchange)

    def ask(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        """The answer. Raises TimeoutError after `seconds`, ProcessEndedError where the child ended instead; either way
        there is no child left."""
        self.start()
        return self._exchange(request, seconds)

    def interrupt(self) -> None:
        """From another thread: makes an `ask` under way raise ProcessEndedError."""
        process = self._process
        if process is not None:
            process.kill()

    def end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        process.wait()

    def _exchange(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        assert self._process is not None
        data = json.dumps(request).encode()
        deadline = time.monotonic() + seconds
        try:
            _write(self._process, len(data).to_bytes(4, "big") + data, deadline)
            size = int.from_bytes(_read(self._process, 4, deadline), "big")
            return json.loads(_read(self._process, size, deadline))
        except TimeoutError:
            self.end()
            raise
        except (EOFError, BrokenPipeError):
            raise ProcessEndedError(self._ended()) from None

    def _ended(self) -> int | None:
        """The status of a child that ends by itself: killed in this moment, it might tell of that instead."""
        assert self._process is not None
        try:
            return self._process.wait(_ENDING)
        except subprocess.TimeoutExpired:
            return None
        finally:
            self.end()


def _write(process: subprocess.Popen[bytes], data: bytes, deadline: float) -> None:
    assert process.stdin is not None
    descriptor = process.stdin.fileno()
    os.set_blocking(descriptor, False)
    view = memoryview(data)
    while view:
        _wait([], [descriptor], deadline)
        view = view[os.write(descriptor, view) :]


def _read(process: subprocess.Popen[bytes], size: int, deadline: float) -> bytes:
    assert process.stdout is not None
    descriptor = process.stdout.fileno()
    parts = bytearray()
    while len(parts) < size:
        _wait([descriptor], [], deadline)
        part = os.read(descriptor, size - len(parts))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)


def _wait(readable: list[int], writable: list[int], deadline: float) -> None:
    """select.poll has no limit on the number of open files, unlike select.select."""
    poll = select.poll()
    for descriptor in readable:
        poll.register(descriptor, select.POLLIN)
    for descriptor in writable:
        poll.register(descriptor, select.POLLOUT)
    left = deadline - time.monotonic()
    if left <= 0 or not poll.poll(left * 1000):
        raise TimeoutError
