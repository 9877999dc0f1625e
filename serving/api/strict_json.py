"""Bytes to one JSON object, with everything refused that two parsers could read differently or that later code could
choke on: invalid UTF-8, NaN and Infinity, duplicate keys, lone surrogates, numbers beyond 64 bits, deep nesting."""

import json
import math
import re
from typing import Any, NoReturn

from serving.errors import RequestError

MAX_DEPTH = 64
_MAX_INT = 2**63 - 1
_MIN_INT = -(2**63)
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


def parse_object(body: bytes) -> dict[str, Any]:
    """Raises RequestError with code "invalid_json", or with `param` the path of the value at fault."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _invalid(f"the body is not valid UTF-8 at byte {error.start}") from None
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_constant)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise _invalid(f"the body is not valid JSON: {error.msg} at {where}") from None
    except RecursionError:
        raise _too_deep() from None
    except ValueError:  # the interpreter's bound on the digits of an integer
        raise _invalid("the body holds an integer with thousands of digits; integers are at most 64 bits") from None
    if not isinstance(value, dict):
        raise _invalid(f"the body must be a JSON object, not {json_type(value)}")
    _check(value, surrogates_possible=_SURROGATE_ESCAPE.search(body) is not None)
    return value


def json_type(value: object) -> str:
    """The JSON word for a Python value's type, with its article."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "a string"
    return "an array" if isinstance(value, list | tuple) else "an object"


def join_path(path: str, key: str | int) -> str:
    """`messages` + 0 -> `messages[0]`; odd keys are quoted and cut short."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    if not _PLAIN_KEY.fullmatch(key):
        return f"{path}[{json.dumps(key[:32])}]"
    return f"{path}.{key}" if path else key


class _Repeating(dict[str, Any]):
    """An object that has a key twice. The parser does not know its path, so it is refused later, by the walk."""

    repeated: str


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) == len(pairs):
        return value
    seen: set[str] = set()
    found = _Repeating(value)
    found.repeated = next(key for key, _ in pairs if key in seen or seen.add(key))
    return found


def _constant(name: str) -> NoReturn:
    raise _invalid(f"the body is not valid JSON: {name} is not a JSON number")


def _invalid(message: str) -> RequestError:
    return RequestError(message, code="invalid_json")


def _too_deep() -> RequestError:
    return RequestError(f"the body is nested more than {MAX_DEPTH} levels deep", code="nested_too_deeply")


def _check(root: dict[str, Any], *, surrogates_possible: bool) -> None:
    """Walks the containers without recursion; runs of integers, such as a tokenized prompt, take two C loops."""
    stack: list[tuple[str, Any, int]] = [("", root, 1)]
    while stack:
        path, container, depth = stack.pop()
        if depth > MAX_DEPTH:
            raise _too_deep()
        if isinstance(container, dict):
            if isinstance(container, _Repeating):
                _refuse(join_path(path, container.repeated), "is given twice in one object", code="duplicate_key")
            if surrogates_possible:
                for key in container:
                    _check_string(key, path)
            items = container.items()
        elif set(map(type, container)) == {int}:
            if min(container) >= _MIN_INT and max(container) <= _MAX_INT:
                continue
            items = enumerate(container)
        else:
            items = enumerate(container)
        for key, value in items:
            kind = type(value)
            if kind is dict or kind is list or kind is _Repeating:
                stack.append((join_path(path, key), value, depth + 1))
            elif kind is str:
                if surrogates_possible:
                    _check_string(value, join_path(path, key))
            elif kind is int:
                if not _MIN_INT <= value <= _MAX_INT:
                    _refuse(join_path(path, key), "must fit in a signed 64-bit integer")
            elif kind is float and not math.isfinite(value):
                _refuse(join_path(path, key), "is beyond what a 64-bit float can hold")


def _check_string(value: str, path: str) -> None:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        _refuse(path or "the body", "has an unpaired surrogate escape; write characters beyond U+FFFF as a pair")


def _refuse(path: str, what: str, code: str = "invalid_value") -> NoReturn:
    raise RequestError(f"{path} {what}", param=path, code=code)
