from collections.abc import Callable
from typing import Any

import pytest

from models.errors import CheckpointError
from models.fields import Fields

CONFIG: dict[str, Any] = {
    "heads": 8,
    "zero": 0,
    "eps": 1e-6,
    "tied": True,
    "name": "silu",
    "null": None,
    "not a number": float("nan"),
    "section": {"factor": "two"},
}


def test_fields_are_read_by_type() -> None:
    fields = Fields(CONFIG)
    assert (fields.integer("heads"), fields.number("heads"), fields.positive("eps")) == (8, 8.0, 1e-6)
    assert (fields.boolean("tied", False), fields.string("name")) == (True, "silu")
    assert fields.integer("zero", least=0) == 0


def test_null_counts_as_missing() -> None:
    fields = Fields(CONFIG)
    assert (fields.integer("null", 3), fields.boolean("null", True), fields.strings("null")) == (3, True, [])
    assert fields.section("null").number("factor", 2) == 2.0
    fields.require("null", "silu")


def test_null_is_told_from_missing_where_it_switches_off() -> None:
    fields = Fields(CONFIG)
    assert [fields.is_null(name) for name in ("null", "absent", "zero")] == [True, False, False]
    assert (fields.cap("null", 30.0), fields.cap("absent", 30.0), fields.cap("absent", None)) == (None, 30.0, None)
    assert fields.cap("heads", None) == 8.0


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda f: f.cap("zero", None), "config.json: zero is 0; it must be a number above 0"),
        (lambda f: f.positives("heads", count=2), "config.json: heads is 8; it must be a list of 2 numbers above 0"),
        (lambda f: f.integer("absent"), "config.json: absent is missing; it must be an integer of at least 1"),
        (lambda f: f.integer("zero"), "config.json: zero is 0; it must be an integer of at least 1"),
        (lambda f: f.integer("eps"), "config.json: eps is 1e-06; it must be an integer of at least 1"),
        (lambda f: f.integer("tied"), "config.json: tied is True; it must be an integer of at least 1"),
        (lambda f: f.number("not a number"), "config.json: not a number is nan; it must be a finite number"),
        (lambda f: f.positive("zero"), "config.json: zero is 0; it must be a number above 0"),
        (lambda f: f.boolean("heads", True), "config.json: heads is 8; it must be true or false"),
        (lambda f: f.string("heads"), "config.json: heads is 8; it must be a string"),
        (lambda f: f.strings("name"), "config.json: name is 'silu'; it must be a list of strings"),
        (lambda f: f.section("name"), "config.json: name is 'silu'; it must be an object"),
        (lambda f: f.section("section").number("factor"), "section.factor is 'two'; it must be a finite number"),
        (
            lambda f: f.section("section").only(("scale",)),
            "section.factor is 'two'; it must be absent; known are scale",
        ),
        (lambda f: f.require("name", "gelu"), "name is 'silu'; it must be 'gelu', the only one offered"),
    ],
)
def test_what_is_wrong_is_named_with_what_would_be_right(read: Callable[[Fields], Any], message: str) -> None:
    with pytest.raises(CheckpointError) as error:
        read(Fields(CONFIG))
    assert message in str(error.value)
