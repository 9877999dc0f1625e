"""Which files a search looks into, by their attributes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Value = str | float | bool
Comparison = Literal["eq", "ne", "gt", "gte", "lt", "lte", "in", "nin"]


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
