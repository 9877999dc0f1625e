"""Files to documents, in a process with limits: a file can be made to harm whoever reads it."""

import threading
from dataclasses import dataclass
from pathlib import Path

from serving.bounded_process import Ask, BoundedProcess
from serving.orchestrator.retrieval.document import Document

_WORKER = Path(__file__).with_name("parse_worker.py")
_BUSY = 60.0  # seconds more on the clock than a file may take to compute: other work of the machine's is not its fault


class FileUnreadableError(Exception):
    """`code` is one of OpenAI's for a file of a vector store: unsupported_file, invalid_file."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True, kw_only=True)
class ParseLimits:
    seconds: float = 60.0  # of computing, for one file
    memory_bytes: int = 2 << 30
    most_chars: int = 20_000_000
    most_pages: int = 2000


class ParseProcess:
    """One worker, one file at a time, which does not outlive it: no file sees what another has left in memory.

    May be called from several threads.
    """

    def __init__(self, limits: ParseLimits | None = None) -> None:
        self._limits = limits or ParseLimits()
        self._lock = threading.Lock()
        self._worker = BoundedProcess(_WORKER, [str(self._limits.memory_bytes)], _nothing)

    def read(self, path: Path, name: str) -> Document:
        """`name` is the client's, whose ending may say what the file is. Raises FileUnreadableError."""
        limits = self._limits
        request = {
            "path": str(path.absolute()),
            "name": name,
            "seconds": limits.seconds,
            "most_chars": limits.most_chars,
            "most_pages": limits.most_pages,
        }
        with self._lock:
            try:
                answer = self._worker.ask(request, limits.seconds + _BUSY)
            except TimeoutError:
                message = f"it could not be read within {limits.seconds + _BUSY:g} seconds"
                raise FileUnreadableError("invalid_file", message) from None
            except EOFError:
                message = "reading it took more memory or time than it may"
                raise FileUnreadableError("invalid_file", message) from None
            finally:
                self._worker.end()
        if "code" in answer:
            raise FileUnreadableError(answer["code"], answer["message"])
        return Document(answer["text"], tuple(answer["page_starts"]))

    def interrupt(self) -> None:
        """From another thread: a `read` under way ends."""
        self._worker.interrupt()


def _nothing(_: Ask) -> None:
    """The worker has nothing to be told before its first file."""
