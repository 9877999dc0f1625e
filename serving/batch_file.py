"""The output of a batch: a file of records that a second run continues."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from serving.errors import SetupError


class BatchFile:
    """Appends records. Opening it repairs what a killed run left: a torn last line is dropped, and so are errors, whose
    lines are run again. `finished` holds the ids of the records that stay.

    A context. Raises SetupError where the file is no batch's output, cannot be written, or another run writes to it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.finished: set[str | int] = set()

    def __enter__(self) -> "BatchFile":
        if self._path.exists() and not self._path.is_file():  # what is read again at once, and replaced
            raise SetupError(f"{self._path}: records go into a regular file, and this is none", param="output")
        try:
            self._file = self._path.open("ab")
        except OSError as error:
            raise self._unwritable(error) from error
        try:
            self._lock()
            self._repair()
        except OSError as error:
            self._file.close()
            raise self._unwritable(error) from error
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()

    def append(self, record: dict[str, Any]) -> None:
        """On disk as far as this process is concerned: a kill loses nothing that was appended. Raises SetupError where
        the disk does not take it."""
        try:
            self._file.write(msgspec.json.encode(record) + b"\n")
            self._file.flush()
        except OSError as error:
            with contextlib.suppress(OSError):
                self._file.close()  # here, as it tries once more to write what is left
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> SetupError:
        return SetupError(f"{self._path}: cannot be written: {error.strerror or error}", param="output")

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SetupError(f"{self._path}: another run is writing to it", param="output") from None

    def _repair(self) -> None:
        stay = [record is not None and "error" not in record for _, record in self._records()]
        if not all(stay):
            self._rewrite()
        self.finished = {record["id"] for _, record in self._records() if record is not None}

    def _rewrite(self) -> None:
        """Through a new file, so that a kill here loses nothing either."""
        repaired = self._path.with_name(f".{self._path.name}.repaired")
        with repaired.open("wb") as kept:
            kept.writelines(line for line, record in self._records() if record is not None and "error" not in record)
        self._file.close()
        os.replace(repaired, self._path)
        self._file = self._path.open("ab")
        self._lock()

    def _records(self) -> Iterator[tuple[bytes, dict[str, Any] | None]]:
        """Each line with its record; None for one that was torn off at the end."""
        with self._path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if not line.endswith(b"\n"):
                    yield line, None
                    return
                record: Any = None
                with contextlib.suppress(msgspec.DecodeError):
                    record = msgspec.json.decode(line)
                if not isinstance(record, dict) or not ("error" in record or isinstance(record.get("id"), str | int)):
                    raise SetupError(f"{self._path}, line {number}: this is no record of a batch", param="output")
                yield line, record
