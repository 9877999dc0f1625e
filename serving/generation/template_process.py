"""Renders chat templates in a process of its own, under limits that hold.

A template is code from a checkpoint. Jinja2's sandbox keeps it from attributes and files, but not from time and memory:
one comparison of two nested lists, one `replace`, one `center(10**9)` runs inside one C call, where no counter of steps
is looked at. A process can be ended from outside at any instruction, has its own memory limit, an empty environment
without secrets, and takes the rendering of long chats off the API process's interpreter. A render costs one round trip
over a pipe.
"""

import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_WORKER = Path(__file__).with_name("template_worker.py")


class TemplateError(Exception):
    """`kind` is raised, limit, security, syntax or failed: see `template_worker.answer`."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


class TemplateProcess:
    """One worker, one render at a time; a worker that broke a limit is ended, and the next render starts another.

    May be called from several threads.
    """

    def __init__(
        self,
        templates: Mapping[str, str],
        *,
        seconds: float = 2.0,
        most_chars: int = 16 << 20,
        memory_bytes: int = 1 << 30,
    ) -> None:
        self._templates = dict(templates)
        self._seconds = seconds
        self._most_chars = most_chars
        self._memory_bytes = memory_bytes
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._reads: dict[str, frozenset[str]] = {}

    def render(self, name: str, variables: Mapping[str, Any]) -> str:
        """Raises TemplateError."""
        request = {"name": name, "variables": variables, "most_chars": self._most_chars}
        with self._lock:
            process = self._running()
            return self._ask(process, request)["text"]

    def compile(self) -> dict[str, frozenset[str]]:
        """The variables that each template reads. Raises TemplateError of kind syntax where one cannot be parsed."""
        with self._lock:
            self._running()
            return self._reads

    def close(self) -> None:
        with self._lock:
            self._end()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._end()
        self._process = process = subprocess.Popen(
            [sys.executable, "-I", str(_WORKER), str(self._memory_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={name: os.environ[name] for name in ("TZ", "LD_LIBRARY_PATH") if name in os.environ},
            cwd="/",
            start_new_session=True,  # an interrupt from the terminal is for the parent; the worker ends with its pipe
        )
        for name, source in self._templates.items():
            # Starting an interpreter is not the template's time.
            answer = self._ask(process, {"name": name, "source": source}, grace=30.0)
            self._reads[name] = frozenset(answer["reads"])
        return process

    def _ask(self, process: subprocess.Popen[bytes], request: dict[str, Any], grace: float = 0.0) -> dict[str, Any]:
        data = json.dumps({**request, "seconds": self._seconds}).encode()
        deadline = time.monotonic() + self._seconds + grace
        try:
            _write(process, len(data).to_bytes(4, "big") + data, deadline)
            size = int.from_bytes(_read(process, 4, deadline), "big")
            answer = json.loads(_read(process, size, deadline))
        except TimeoutError:
            self._end()
            raise TemplateError("limit", f"it did not finish within {self._seconds:g} seconds") from None
        except (BrokenPipeError, EOFError):
            self._end()
            raise TemplateError("limit", "it used more memory or time than it may") from None
        if "kind" in answer:
            raise TemplateError(answer["kind"], answer["message"])
        return answer

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        process.wait()


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
