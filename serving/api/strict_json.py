"""Bytes to one JSON object, with everything refused that two parsers could read differently or that later code could
choke on: invalid UTF-8, NaN and Infinity, duplicate keys, lone surrogates, numbers beyond 64 bits, deep nesting, too
many arrays and objects."""

import json
import math
import re
from collections.abc import Callable
from typing import Any, NoReturn

from serving.errors import RequestError

MAX_DEPTH = 64
MAX_CONTAINERS = 1 << 16  # arrays and objects; each costs a hundred times what its two bytes do
_MAX_INT = 2**63 - 1
_MIN_INT = -(2**63)
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
# Matches from any quote on, also to an end that is missing, so that no byte is looked at twice.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")

_Where = tuple["_Where | None", str | int]  # of a value: its container's, and its key there


def parse_object(body: bytes) -> dict[str, Any]:
    """Raises RequestError with code "invalid_json", or with `param` the path of the value at fault."""
    value = _loaded(body, "the body")
    if not isinstance(value, dict):
        raise _invalid(f"the body must be a JSON object, not {json_type(value)}")
    _check(value, "the body", surrogates_possible=_SURROGATE_ESCAPE.search(body) is not None)
    return value


def parse_value(text: str, field: str, name: str) -> Any:
    """Any JSON value that stands in a string: in `field` of a message. `name` is what paths of values in it begin with.
    Raises RequestError as `parse_object` does, with `param`."""
    body = text.encode()
    try:
        value = _loaded(body, field)
        _check({name: value}, field, surrogates_possible=_SURROGATE_ESCAPE.search(body) is not None)
    except RequestError as error:
        raise RequestError(error.message, param=error.param or field, code=error.code) from None
    return value


def _loaded(body: bytes, what: str) -> Any:
    _check_count(body, what)
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _invalid(f"{what} is not valid UTF-8 at byte {error.start}") from None
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=_constant(what))
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise _invalid(f"{what} is not valid JSON: {error.msg} at {where}") from None
    except RecursionError:
        raise _too_deep(what) from None
    except ValueError:  # the interpreter's bound on the digits of an integer
        raise _invalid(f"{what} holds an integer with thousands of digits; integers are at most 64 bits") from None


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


def _constant(what: str) -> Callable[[str], NoReturn]:
    def refuse(name: str) -> NoReturn:
        raise _invalid(f"{what} is not valid JSON: {name} is not a JSON number")

    return refuse


def _invalid(message: str) -> RequestError:
    return RequestError(message, code="invalid_json")


def _too_deep(what: str) -> RequestError:
    return RequestError(f"{what} is nested more than {MAX_DEPTH} levels deep", code="nested_too_deeply")


def _check_count(body: bytes, what: str) -> None:
    """Before anything is made of it. Brackets within strings do not count, so these are cut out where it matters."""
    if _brackets(body) > MAX_CONTAINERS and _brackets(_STRING.sub(b"", body)) > MAX_CONTAINERS:
        raise RequestError(f"{what} has more than {MAX_CONTAINERS} arrays and objects", code="too_many_values")


def _brackets(body: bytes) -> int:
    return body.count(b"[") + body.count(b"{")


def _check(root: dict[str, Any], what: str, *, surrogates_possible: bool) -> None:
    """Walks the containers without recursion. Runs of one kind, such as a tokenized prompt, take C loops; paths are put
    together only for an error."""
    stack: list[tuple[dict[str, Any] | list[Any], int, _Where | None]] = [(root, 1, None)]
    while stack:
        container, depth, where = stack.pop()
        if depth > MAX_DEPTH:
            raise _too_deep(what)
        if isinstance(container, list):
            if _is_plain_run(container, surrogates_possible=surrogates_possible):
                continue
            items = enumerate(container)
        else:
            if isinstance(container, _Repeating):
                _refuse((where, container.repeated), "is given twice in one object", code="duplicate_key")
            if surrogates_possible:
                for key in container:
                    _check_string(key, where)
            items = container.items()
        for key, value in items:
            kind = type(value)
            if kind is dict or kind is list or kind is _Repeating:
                stack.append((value, depth + 1, (where, key)))
            elif kind is str:
                if surrogates_possible:
                    _check_string(value, (where, key))
            elif kind is int:
                if not _MIN_INT <= value <= _MAX_INT:
                    _refuse((where, key), "must fit in a signed 64-bit integer")
            elif kind is float and not math.isfinite(value):
                _refuse((where, key), "is beyond what a 64-bit float can hold")


def _is_plain_run(values: list[Any], *, surrogates_possible: bool) -> bool:
    """Whether these are values of one kind that need no look at each."""
    kinds = set(map(type, values))
    if kinds == {int}:
        return min(values) >= _MIN_INT and max(values) <= _MAX_INT
    return not kinds or (kinds == {str} and not surrogates_possible)


def _check_string(value: str, where: _Where | None) -> None:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        _refuse(where, "has an unpaired surrogate escape; write characters beyond U+FFFF as a pair")


def _refuse(where: _Where | None, what: str, code: str = "invalid_value") -> NoReturn:
    path = _path(where)
    raise RequestError(f"{path or 'the body'} {what}", param=path or "the body", code=code)


def _path(where: _Where | None) -> str:
    keys: list[str | int] = []
    while where is not None:
        where, key = where
        keys.append(key)
    path = ""
    for key in reversed(keys):
        path = join_path(path, key)
    return path
