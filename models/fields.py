"""Typed reading of config.json: a field that is missing or of the wrong kind is named, with what would be right."""

import math
from collections.abc import Collection, Mapping
from typing import Any

from models.errors import CheckpointError


class Fields:
    """The fields of config.json, or of an object inside it. null counts as missing, but for `is_null`."""

    def __init__(self, values: Mapping[str, Any], where: str = "config.json: ") -> None:
        self._values = values
        self._where = where  # what precedes a field's name in an error

    def __contains__(self, name: str) -> bool:
        return self._values.get(name) is not None

    def is_null(self, name: str) -> bool:
        """There and null: where that switches off what a missing field leaves on."""
        return name in self._values and self._values[name] is None

    def integer(self, name: str, default: int | None = None, *, least: int = 1) -> int:
        """Raises CheckpointError where the field is no integer of at least `least`, or missing and without default."""
        value = self._values.get(name)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self.error(name, f"an integer of at least {least}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """Raises CheckpointError where the field is no finite number, or missing and without default."""
        value = self._values.get(name)
        value = default if value is None else value
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self.error(name, "a finite number")
        try:
            number = float(value)
        except OverflowError:  # an integer of hundreds of digits
            number = math.inf
        if not math.isfinite(number):
            raise self.error(name, "a finite number")
        return number

    def positive(self, name: str, default: float | None = None) -> float:
        """A number above zero."""
        value = self.number(name, default)
        if value <= 0:
            raise self.error(name, "a number above 0")
        return value

    def above_one(self, name: str, default: float | None = None) -> float:
        """A number whose logarithm divides others."""
        value = self.number(name, default)
        if value <= 1:
            raise self.error(name, "a number above 1")
        return value

    def cap(self, name: str, default: float | None) -> float | None:
        """A number above zero; null is none, whatever the default."""
        return None if self.is_null(name) or (default is None and name not in self) else self.positive(name, default)

    def positives(self, name: str, *, count: int) -> list[float]:
        """A list of `count` numbers above zero."""
        values = self._values.get(name)
        if not isinstance(values, list) or len(values) != count:
            raise self.error(name, f"a list of {count} numbers above 0")
        if not all(isinstance(value, int | float) and not isinstance(value, bool) and value > 0 for value in values):
            raise self.error(name, f"a list of {count} numbers above 0")
        return [float(value) for value in values]

    def boolean(self, name: str, default: bool) -> bool:
        value = self._values.get(name)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise self.error(name, "true or false")
        return value

    def string(self, name: str, default: str | None = None) -> str:
        value = self._values.get(name)
        value = default if value is None else value
        if not isinstance(value, str):
            raise self.error(name, "a string")
        return value

    def strings(self, name: str) -> list[str]:
        """A list of strings; empty where the field is missing."""
        value = self._values.get(name)
        value = [] if value is None else value
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.error(name, "a list of strings")
        return value

    def grouped_strings(self, name: str) -> list[str]:
        """A list of strings, or of lists of them, as one; empty where the field is missing."""
        value = self._values.get(name)
        groups = [] if value is None else value
        if not isinstance(groups, list):
            raise self.error(name, "a list of strings, or of lists of them")
        found = [item for group in groups for item in (group if isinstance(group, list) else [group])]
        if not all(isinstance(item, str) for item in found):
            raise self.error(name, "a list of strings, or of lists of them")
        return found

    def integers(self, name: str) -> list[int]:
        """A list of integers; empty where the field is missing."""
        value = self._values.get(name)
        value = [] if value is None else value
        if not isinstance(value, list) or not all(
            isinstance(item, int) and not isinstance(item, bool) for item in value
        ):
            raise self.error(name, "a list of integers")
        return value

    def two_integers(self, name: str) -> tuple[int, int]:
        """A list of two integers above zero."""
        values = self.integers(name)
        if len(values) != 2 or min(values) < 1:
            raise self.error(name, "a list of two integers above 0")
        return values[0], values[1]

    def names(self) -> list[str]:
        return list(self._values)

    def is_empty(self, name: str) -> bool:
        """There, and an object or a list with nothing in it."""
        return self._values.get(name) in ({}, [])

    def section(self, name: str) -> "Fields":
        """The object under that name; one without fields where it is missing."""
        value = self._values.get(name)
        value = {} if value is None else value
        if not isinstance(value, dict):
            raise self.error(name, "an object")
        return Fields(value, f"{self._where}{name}.")

    def says_all_of(self, other: "Fields", *, but: Collection[str] = ()) -> bool:
        """Whether each field of `other`, `but` for those, is here too, with the same value."""
        said = {name: value for name, value in other._values.items() if name in other and name not in but}
        return all(self._values.get(name) == value for name, value in said.items())

    def require(self, name: str, value: Any) -> None:
        """For what only one value is implemented of. Missing is right too: `value` is the hub's default."""
        if name in self and self._values[name] != value:
            raise self.error(name, f"{value!r}, the only one offered for this architecture")

    def only(self, names: Collection[str]) -> None:
        """Raises CheckpointError for a field that is not among `names`: it would be ignored."""
        for name in self._values:
            if name in self and name not in names:
                raise self.error(name, f"absent; known are {', '.join(names)}")

    def kv_heads(self, heads: int) -> int:
        """`num_key_value_heads`: by default one a query head."""
        count = self.integer("num_key_value_heads", heads)
        if heads % count:
            raise self.error("num_key_value_heads", f"a divisor of num_attention_heads, {heads}")
        return count

    def head_dim(self, d: int, heads: int) -> int:
        """`head_dim`: by default the model's width over its heads."""
        if "head_dim" not in self and d % heads:
            raise self.error("head_dim", f"there, as hidden_size {d} is no multiple of num_attention_heads {heads}")
        return self.integer("head_dim", d // heads)

    def error(self, name: str, right: str) -> CheckpointError:
        """To raise where the field is not what it must be."""
        found = f"is {self._values[name]!r}" if name in self else "is missing"
        return CheckpointError(f"{self._where}{name} {found}; it must be {right}")
