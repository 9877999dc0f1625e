"""Renders chat templates in a process of its own, under limits that hold.

A template is code from a checkpoint. Jinja2's sandbox keeps it from attributes and files, but not from time and memory:
one comparison of two nested lists, one `replace`, one `center(10**9)` runs inside one C call, where no counter of steps
is looked at. A process can be ended from outside at any instruction, has its own memory limit, an empty environment
without secrets, and takes the rendering of long chats off the API process's interpreter. A render costs one round trip
over a pipe.
"""

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from serving.bounded_process import Ask, BoundedProcess

_STARTING = 120.0  # seconds on the clock for an interpreter to start, which are not the template's
_BUSY = 8.0  # seconds more on the clock than the template may compute: other work of the machine's is not its fault
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
        self._lock = threading.Lock()
        self._worker = BoundedProcess(_WORKER, [str(memory_bytes)], self._compile_all)
        self._reads: dict[str, frozenset[str]] = {}

    def render(self, name: str, variables: Mapping[str, Any]) -> str:
        """Raises TemplateError."""
        request = {"name": name, "variables": variables, "most_chars": self._most_chars}
        with self._lock:
            self._worker.start()
            return self._answer(self._worker.ask, request)["text"]

    def compile(self) -> dict[str, frozenset[str]]:
        """The variables that each template reads. Raises TemplateError of kind syntax where one cannot be parsed."""
        with self._lock:
            self._worker.start()
            return self._reads

    def close(self) -> None:
        with self._lock:
            self._worker.end()

    def _compile_all(self, ask: Ask) -> None:
        for name, source in self._templates.items():
            answer = self._answer(ask, {"name": name, "source": source}, grace=_STARTING)
            self._reads[name] = frozenset(answer["reads"])

    def _answer(self, ask: Ask, request: dict[str, Any], grace: float = 0.0) -> dict[str, Any]:
        try:
            answer = ask({**request, "seconds": self._seconds}, self._seconds + _BUSY + grace)
        except TimeoutError:
            raise TemplateError("limit", f"it did not finish within {self._seconds + _BUSY:g} seconds") from None
        except EOFError:
            raise TemplateError("limit", "it used more memory or time than it may") from None
        if "kind" in answer:
            raise TemplateError(answer["kind"], answer["message"])
        return answer
