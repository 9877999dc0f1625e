"""The words that schemas of answers are written in."""

from collections.abc import Mapping
from typing import Any

Schema = Mapping[str, Any]

TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
TEXT_OR_NULL: Schema = {"type": ["string", "null"]}


def object_of(**members: Schema) -> Schema:
    """With all of them, and maybe more."""
    return {"type": "object", "properties": members, "required": list(members)}


def list_of(member: Schema) -> Schema:
    return {"type": "array", "items": member}


def word(*words: str) -> Schema:
    return {"enum": list(words)}


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def page_of(name: str) -> Schema:
    """Some of a list of these."""
    return object_of(
        object=word("list"),
        first_id=TEXT_OR_NULL,
        last_id=TEXT_OR_NULL,
        has_more={"type": "boolean"},
        data=list_of(ref(name)),
    )


def end_of(kind: str) -> Schema:
    """What is said of a thing that is gone."""
    return object_of(id=TEXT, object=word(kind), deleted={"const": True})
