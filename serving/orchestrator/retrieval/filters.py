"""Which files a search looks into, by their attributes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from serving.errors import RequestError

Value = str | float | bool
Comparison = Literal["eq", "ne", "gt", "gte", "lt", "lte", "in", "nin"]
COMPARISONS: tuple[Comparison, ...] = get_args(Comparison)
DEEPEST, MOST_FILTERS = 8, 100


@dataclass(frozen=True, slots=True)
class Compare:
    key: str
    comparison: Comparison
    value: Value | tuple[Value, ...]  # a tuple for "in" and "nin"

    def holds(self, attributes: Mapping[str, Value]) -> bool:
        """An attribute that is not there equals nothing: only "ne" and "nin" hold of it. Values of two kinds are not
        equal, and neither is greater."""
        there = attributes.get(self.key)
        match self.comparison:
            case "in" | "nin":
                assert isinstance(self.value, tuple)
                return any(_equal(there, value) for value in self.value) == (self.comparison == "in")
            case "eq" | "ne":
                assert not isinstance(self.value, tuple)
                return _equal(there, self.value) == (self.comparison == "eq")
            case _:
                return self._is_ordered(there)

    def _is_ordered(self, there: Value | None) -> bool:
        value = self.value
        if isinstance(there, str) and isinstance(value, str):
            order = (there > value) - (there < value)
        elif _is_number(there) and _is_number(value):
            order = (there > value) - (there < value)  # type: ignore[operator] -- both are numbers
        else:
            return False
        return {"gt": order > 0, "gte": order >= 0, "lt": order < 0, "lte": order <= 0}[self.comparison]


@dataclass(frozen=True, slots=True)
class Compound:
    word: Literal["and", "or"]
    filters: tuple["Filter", ...]

    def holds(self, attributes: Mapping[str, Value]) -> bool:
        every = all if self.word == "and" else any
        return every(each.holds(attributes) for each in self.filters)


Filter = Compare | Compound


def _equal(there: Value | None, value: Value) -> bool:
    return isinstance(there, bool) == isinstance(value, bool) and there == value


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def parse_filter(given: object, param: str = "filters") -> Filter:
    """OpenAI's form, as JSON was read. Raises RequestError, which names what is wrong by its path."""
    found = _parsed(given, param, DEEPEST)
    if _size(found) > MOST_FILTERS:
        raise _wrong(param, f"may have {MOST_FILTERS} comparisons")
    return found


def _parsed(given: object, param: str, depth: int) -> Filter:
    if not isinstance(given, dict):
        raise _wrong(param, "must be an object with a type")
    word: Any = given.get("type")
    if word in ("and", "or"):
        _check_members(given, ("type", "filters"), param)
        inner = given["filters"]
        if not isinstance(inner, list) or not inner:
            raise _wrong(f"{param}.filters", "must be a list of filters, and not empty")
        if depth == 1:
            raise _wrong(param, f"may be {DEEPEST} filters deep")
        found = (_parsed(each, f"{param}.filters[{at}]", depth - 1) for at, each in enumerate(inner))
        return Compound(word, tuple(found))
    if word not in COMPARISONS:
        raise _wrong(f"{param}.type", f"must be and, or, {', '.join(COMPARISONS)}")
    _check_members(given, ("type", "key", "value"), param)
    key, value = given["key"], given["value"]
    if not isinstance(key, str):
        raise _wrong(f"{param}.key", "must be a string")
    if word in ("in", "nin"):
        if not isinstance(value, list) or not all(isinstance(each, str | int | float) for each in value):
            raise _wrong(f"{param}.value", "must be a list of strings, numbers or booleans")
        return Compare(key, word, tuple(value))
    if not isinstance(value, str | int | float):
        raise _wrong(f"{param}.value", "must be a string, a number or a boolean")
    return Compare(key, word, value)


def _check_members(given: dict[str, Any], names: tuple[str, ...], param: str) -> None:
    for name in names:
        if name not in given:
            path = f"{param}.{name}"
            raise RequestError(f"{path} is required", param=path, code="missing_required_parameter")
    for name in given:
        if name not in names:
            raise RequestError(f"{param}.{name[:64]} is not a known field", param=param, code="unknown_parameter")


def _size(given: Filter) -> int:
    return 1 if isinstance(given, Compare) else sum(map(_size, given.filters))


def _wrong(param: str, what: str) -> RequestError:
    return RequestError(f"{param} {what}", param=param, code="invalid_value")
