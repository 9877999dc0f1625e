"""Log lines with fields, as JSON or as text; never a client's text.

What a client wrote may stand in an exception's message, in a path, or in an error's `param`. So a record carries named
fields that the server chose, and a traceback is printed as its frames and the exception's type, without the message.
"""

import json
import logging
import sys
import time
import traceback
from types import TracebackType
from typing import Any, Literal, TextIO

# Made once: `json.dumps` makes one for each value where it is asked for anything but its defaults.
_encode = json.JSONEncoder(ensure_ascii=False, default=str).encode

LogFormat = Literal["json", "text"]

_ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None]


def configure_logging(kind: LogFormat, *, level: int = logging.INFO, stream: TextIO | None = None) -> None:
    """Sends every logger of this process to `stream` (default: stderr), in one format."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if kind == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name in list(root.manager.loggerDict):  # a library that was imported earlier may keep its lines to itself
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate, logger.disabled = True, False


def log_event(logger: logging.Logger, event: str, *, level: int = logging.INFO, **fields: object) -> None:
    """One line: `event` is a constant of the caller's, `fields` are ids, numbers and words that the server chose."""
    logger.log(level, event, extra={"fields": fields})


def log_failure(logger: logging.Logger, event: str, error: BaseException, **fields: object) -> None:
    """An error that nobody expected, with its traceback and without its message."""
    logger.error(event, exc_info=(type(error), error, error.__traceback__), extra={"fields": fields})


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _timestamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **_fields(record),
        }
        return _encode(line)


class TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {key}={_encode(value)}" for key, value in _fields(record).items())
        return f"{_timestamp(record)} {record.levelname.lower():<7} {record.getMessage()}{fields}"


def _fields(record: logging.LogRecord) -> dict[str, object]:
    fields = dict(getattr(record, "fields", {}))
    if record.exc_info and record.exc_info[0] is not None:
        fields |= _frames(record.exc_info)
    return fields


def _frames(exc_info: _ExcInfo) -> dict[str, object]:
    frames = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_tb(exc_info[2])]
    return {"exception": exc_info[0].__qualname__, "frames": frames}


def _timestamp(record: logging.LogRecord) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"
