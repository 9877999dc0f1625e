"""A step trace: the plans of an engine that ran, one after another, in a file that another machine can replay.

    header     version of the form, what the engine was built for, the model's config.json and its weights' version
    plan       as it goes to other hosts (see `plan_wire.py`): rows, pages, token ids
    masks      of the plan before, where streams had grammars
    result     a digest of what the step drew, and the seconds that it took

Each is a msgpack message behind its length. There is no text in it but config.json; token ids are the text in another
form, so a trace is as confidential as the prompts and answers of its time.
"""

import os
import struct
import zlib
from array import array
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import msgspec

from serving.engine.cluster_wire import Masks
from serving.engine.plan import StepResult
from serving.engine.plan_wire import PlanChange
from serving.errors import RequestError

FORM = "weft step trace"
VERSION = 1
SUFFIX = ".wefttrace"
_LENGTH = struct.Struct("<I")
_LARGEST = 1 << 28  # bytes of a message that is read


class TraceHeader(msgspec.Struct, frozen=True, kw_only=True, tag="header"):
    form: str = FORM
    version: int = VERSION
    model_name: str
    weights: str  # their version; empty: not known
    began_at: float  # seconds since 1970
    tables: dict[str, dict[str, Any]]  # of the deployment: those that decide which programs there are
    config: dict[str, Any]  # config.json


class TracedResult(msgspec.Struct, frozen=True, tag="result"):
    step: int
    digest: int
    seconds: float  # on the device: from when it was there and the step before it done, to its tokens


Record = PlanChange | Masks | TracedResult

_encode = msgspec.msgpack.Encoder().encode
_decode_record = msgspec.msgpack.Decoder(Record).decode
_decode_header = msgspec.msgpack.Decoder(TraceHeader).decode


def digest_of_result(result: StepResult) -> int:
    """A checksum over the tokens that a step drew."""
    drawn: list[int] = []
    for found in result.ranges:
        tokens = () if found.token_id is None else (found.token_id, *found.following)
        drawn += (len(tokens), *tokens)
    return zlib.crc32(array("q", drawn))


class TraceFile:
    """A trace that is written. Readable by its owner alone; a file of that name that is there is kept."""

    def __init__(self, path: Path, header: TraceHeader, most_bytes: int) -> None:
        """Raises FileExistsError, OSError."""
        self._file = open(path, "xb", opener=_owners_alone)  # noqa: SIM115
        self._left = most_bytes
        self.full = False
        self.bytes = 0
        self.write(header)

    def write(self, message: TraceHeader | Record) -> None:
        """Nothing, once a message has not fitted."""
        data = _encode(message)
        size = _LENGTH.size + len(data)
        self.full = self.full or size > self._left
        if self.full:
            return
        self._file.write(_LENGTH.pack(len(data)) + data)
        self._left -= size
        self.bytes += size

    def close(self) -> None:
        self._file.close()


class TraceReader:
    """A trace that was written. A context: it holds the file open."""

    def __init__(self, path: Path) -> None:
        """Raises RequestError where it is not a trace, or one of another version."""
        try:
            self._file: BinaryIO = path.open("rb")
        except OSError as error:
            raise RequestError(f"{path}: cannot be read: {error.strerror or error}", param="trace") from error
        try:
            self.header = self._header(path)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> "TraceReader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def records(self) -> Iterator[Record]:
        """Up to the end, or to a message that was cut off. Raises RequestError for a damaged one."""
        while (data := self._next()) is not None:
            try:
                yield _decode_record(data)
            except msgspec.DecodeError as error:
                raise RequestError(f"the trace is damaged: {error}", param="trace") from error

    def _header(self, path: Path) -> TraceHeader:
        try:
            facts = msgspec.msgpack.decode(self._next() or b"\xc0")
        except msgspec.DecodeError:
            facts = None
        if not isinstance(facts, dict) or facts.get("form") != FORM:
            raise RequestError(f"{path}: it is no step trace", param="trace")
        if facts.get("version") != VERSION:
            raise RequestError(
                f"{path}: a trace of version {facts.get('version')}, and this weft reads {VERSION}", param="trace"
            )
        try:
            return msgspec.convert(facts, TraceHeader)
        except msgspec.ValidationError as error:
            raise RequestError(f"{path}: the trace's header is damaged: {error}", param="trace") from error

    def _next(self) -> bytes | None:
        prefix = self._file.read(_LENGTH.size)
        if len(prefix) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack(prefix)
        data = self._file.read(length) if length <= _LARGEST else b""
        return data if len(data) == length else None


def _owners_alone(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
