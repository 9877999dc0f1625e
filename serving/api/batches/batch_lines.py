"""The lines of a batch's file: read one at a time, and checked all before the first one runs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from serving.api.batches.batch import Endpoint, LineFault
from serving.api.strict_json import parse_object
from serving.api.typed_body import Body, typed
from serving.errors import RequestError

MOST_FAULTS = 20  # that are told
MAX_ID_CHARS = 512


class LineBody(Body, kw_only=True):
    custom_id: str
    method: str
    url: str
    body: dict[str, Any]


class Line(msgspec.Struct, frozen=True):
    number: int  # from 1
    custom_id: str
    body: dict[str, Any]


class LineReader:
    def __init__(self, path: Path, endpoint: Endpoint, max_line_bytes: int) -> None:
        self._path = path
        self._endpoint = endpoint
        self._most = max_line_bytes

    def lines(self) -> Iterator[Line]:
        """Raises RequestError, as for a file that was checked it does not, and OSError."""
        for number, raw in self._raw():
            yield self._line(number, raw)

    def faults(self, max_lines: int) -> tuple[int, list[LineFault]]:
        """The number of lines, and what is wrong with them."""
        if not self._path.exists():
            return 0, [LineFault(code="file_not_found", message="the file was deleted", param="input_file_id")]
        found: list[LineFault] = []
        seen: set[str] = set()
        number = 0
        for number, raw in self._raw():
            if number > max_lines:
                text = f"a batch may have at most {max_lines} lines"
                return number, [LineFault(code="too_many_requests", message=text, line=number)]
            try:
                line = self._line(number, raw)
                if line.custom_id in seen:
                    raise RequestError(
                        "custom_id is that of an earlier line", param="custom_id", code="duplicate_custom_id"
                    )
                seen.add(line.custom_id)
            except RequestError as error:
                code = error.code or "invalid_value"
                found.append(LineFault(code=code, message=error.message, line=number, param=error.param))
                if len(found) >= MOST_FAULTS:
                    break
        if number == 0:
            found.append(LineFault(code="empty_file", message="the file has no lines"))
        return number, found

    def _raw(self) -> Iterator[tuple[int, bytes]]:
        """Lines that are not blank. One that is too long comes cut, to be refused."""
        with self._path.open("rb") as file:
            number = 0
            while raw := file.readline(self._most + 1):
                text = raw.strip()
                if text:
                    number += 1
                    yield number, text
                if len(raw) > self._most:
                    return

    def _line(self, number: int, raw: bytes) -> Line:
        if len(raw) > self._most:
            raise RequestError(f"a line may have at most {self._most} bytes", code="payload_too_large")
        line = typed(LineBody, parse_object(raw))
        if line.method != "POST":
            raise RequestError('method must be "POST"', param="method", code="invalid_value")
        if line.url != self._endpoint:
            raise RequestError(f"url must be the batch's {self._endpoint}", param="url", code="invalid_value")
        if not 0 < len(line.custom_id) <= MAX_ID_CHARS:
            raise RequestError(
                f"custom_id must have 1 to {MAX_ID_CHARS} characters", param="custom_id", code="invalid_value"
            )
        return Line(number, line.custom_id, line.body)
