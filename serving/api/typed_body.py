"""A parsed JSON object to a typed struct, or an error that names the field, what it is, and what would be right."""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn, TypeVar

import msgspec
from msgspec import inspect

from serving.api.strict_json import join_path, json_type
from serving.errors import RequestError, UnsupportedError

_WHERE = re.compile(r" - at (?:`key` in )?`\$\.?(?P<path>.*)`$")
_EXPECTED = re.compile(r"Expected `(?P<kinds>[^`]+)`(?P<bound>.*)")
_BACKTICKED = re.compile(r"`([^`]*)`")
_STEP = re.compile(r"\[(\d+)\]|\[\.\.\.\]|\.?([^.\[\]]+)")
_WORDS = {
    "int": "an integer",
    "float": "a number",
    "str": "a string",
    "bool": "true or false",
    "array": "an array",
    "object": "an object",
    "null": "null",
}
_SHOWN = 48  # characters of a value that an error repeats


@dataclass(frozen=True, slots=True)
class Refusal:
    """A parameter that other servers know. `neutral` values ask for nothing, so they are let through."""

    reason: str
    neutral: tuple[Any, ...] = ()


class Body(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What an endpoint reads. Fields hold types and no defaults of sampling: None is always "unset"."""

    refused: ClassVar[Mapping[str, Refusal]] = {}
    words: ClassVar[Mapping[str, tuple[str, ...]]] = {}  # a field of few words, by its path without indices

    @classmethod
    def prepared(cls, table: dict[str, Any]) -> dict[str, Any]:
        """The table with what clients may leave out of it filled in, where a type cannot say so."""
        return table


B = TypeVar("B", bound=Body)


def typed(kind: type[B], table: dict[str, Any]) -> B:
    """Raises UnsupportedError for a parameter that is refused, RequestError for an unknown or malformed one."""
    table = kind.prepared(table)
    known = kind.__struct_fields__
    refused = kind.refused
    asked = {}
    for name, value in table.items():
        if name in known:
            asked[name] = value
        elif name in refused:
            _refuse_unless_neutral(name, value, refused[name])
        else:
            _refuse_unknown(name, (*known, *refused))
    try:
        return msgspec.convert(asked, kind, str_keys=True)
    except msgspec.ValidationError as error:
        _refuse_value(str(error), asked, kind)


def without_nulls(value: Any) -> Any:
    """An object's members that say something: clients' libraries write all that they know into what they send back."""
    return {name: member for name, member in value.items() if member is not None} if isinstance(value, dict) else value


def shown(value: object) -> str:
    """A value as an error repeats it: scalars themselves, cut short; containers by their type and size."""
    if isinstance(value, list | dict):
        return f"{json_type(value)} of {len(value)}"
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _refuse_unless_neutral(name: str, value: Any, refusal: Refusal) -> None:
    if value is None or any(value == ok and isinstance(value, bool) == isinstance(ok, bool) for ok in refusal.neutral):
        return
    allowed = " or ".join(msgspec.json.encode(ok).decode() for ok in refusal.neutral)
    instead = f"leave it out, or send {allowed}" if allowed else "leave it out"
    raise UnsupportedError(f"{name} is not supported: {refusal.reason}; {instead}", param=name)


def _refuse_unknown(name: str, known: tuple[str, ...]) -> NoReturn:
    param = join_path("", name)
    close = difflib.get_close_matches(name[:64], known, n=1, cutoff=0.75)
    hint = f"; did you mean {close[0]}?" if close else ""
    raise RequestError(f"{param} is not a parameter of this endpoint{hint}", param=param, code="unknown_parameter")


def _refuse_value(text: str, table: dict[str, Any], kind: type[Body]) -> NoReturn:
    """msgspec says "Expected `float` <= 2.0 - at `$.temperature`"; clients read a sentence about `temperature`."""
    where = _WHERE.search(text)
    full = where["path"] if where else ""
    path = full.replace("[...]", "")
    what = text[: where.start()] if where else text
    named = _BACKTICKED.search(what)
    if what.startswith("Object missing required field") and named:
        param = join_path(path, named[1])
        raise RequestError(f"{param} is required", param=param, code="missing_required_parameter")
    if what.startswith("Object contains unknown field") and named:
        param = join_path(path, named[1])
        raise RequestError(f"{param} is not a known field", param=param, code="unknown_parameter")
    words = kind.words.get(re.sub(r"\[\d+\]", "[]", path))
    expected = _EXPECTED.match(what)
    if words is None and expected is not None:
        right = f"must be {_alternatives(expected['kinds'])}{_bound(expected['bound'])}"
    else:
        right = f"must be {' or '.join(map(shown, words or _words_of(kind, path)))}"
    if "`key` in" in text or full.endswith("[...]"):
        member = "key" if "`key` in" in text else "value"
        raise RequestError(f"{path}: each {member} {right}", param=path, code="invalid_value")
    raise RequestError(f"{path} {right}, not {shown(_lookup(table, full))}", param=path, code="invalid_value")


def _words_of(kind: type[Body], path: str) -> tuple[str, ...]:
    """Those that the type of a field names: msgspec tells only that a value is none of them."""
    types = _alone(inspect.type_info(kind))
    for step in _STEP.finditer(path):
        types = [alone for each in types for inner in _within(each, step[2]) for alone in _alone(inner)]
    named = [each.values for each in types if isinstance(each, inspect.LiteralType)]
    return tuple(dict.fromkeys(word for words in named for word in words if isinstance(word, str)))


def _alone(kind: inspect.Type) -> list[inspect.Type]:
    """The members of a union; any other type by itself."""
    if isinstance(kind, inspect.Metadata):
        return _alone(kind.type)
    return [alone for each in kind.types for alone in _alone(each)] if isinstance(kind, inspect.UnionType) else [kind]


def _within(kind: inspect.Type, member: str | None) -> list[inspect.Type]:
    """What a struct's member may be; of a list, whose place has no name, what is in it."""
    if member is None:
        return [kind.item_type] if isinstance(kind, inspect.ListType) else []
    if not isinstance(kind, inspect.StructType):
        return []
    if member == kind.tag_field:
        return [inspect.LiteralType((kind.tag,))]
    return [field.type for field in kind.fields if field.encode_name == member]


def _alternatives(kinds: str) -> str:
    return " or ".join(_WORDS.get(kind, kind) for kind in kinds.split(" | "))


def _bound(text: str) -> str:
    """` <= 2.0` or ` of length >= 1` as they are; `, got ...` goes, since the error shows the value itself."""
    return "" if text.startswith(", got") else text.replace("matching regex", "that matches")


def _lookup(table: Any, path: str) -> Any:
    """The value at msgspec's path; where the path says only "some key", the container."""
    value: Any = table
    for step in _STEP.finditer(path):
        if step[1] is not None:
            value = value[int(step[1])]
        elif step[2] is not None:
            value = value.get(step[2]) if isinstance(value, dict) else value
        else:
            return value
    return value
