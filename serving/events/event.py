"""An event in the form of CloudEvents 1.0 (JSON), and the JSON schema of each type."""

from datetime import datetime
from typing import Any, Literal

import msgspec

from serving.events.event_types import EVENT_TYPES, EventData

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`withtext` is an extension attribute: whether the log that it is of records text."""

    id: str
    source: str
    type: str
    time: datetime  # in UTC, and says so
    withtext: bool
    data: EventData
    # Made by factories, because a default would be left out.
    specversion: Literal["1.0"] = msgspec.field(default_factory=lambda: "1.0")
    datacontenttype: Literal["application/json"] = msgspec.field(default_factory=lambda: "application/json")
    subject: str | None = None


def event_schema(kind: type[EventData]) -> dict[str, Any]:
    """Of an event of this type, as it is written. It allows fields that it does not know: a later release may add
    some."""
    _, definitions = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    text: dict[str, Any] = {"type": "string", "minLength": 1}
    return {
        "$schema": _DIALECT,
        "title": kind.type,
        "description": " ".join((kind.__doc__ or "").split()),
        "type": "object",
        "properties": {
            "specversion": {"const": "1.0"},
            "id": text,
            "source": {**text, "format": "uri-reference"},
            "type": {"const": kind.type},
            "time": {"type": "string", "format": "date-time"},
            "subject": text,
            "datacontenttype": {"const": "application/json"},
            "withtext": {"type": "boolean"},
            "data": {"$ref": f"#/$defs/{kind.__name__}"},
        },
        "required": ["specversion", "id", "source", "type", "time", "datacontenttype", "withtext", "data"],
        "$defs": definitions,
    }


def event_schemas() -> dict[str, dict[str, Any]]:
    """By type."""
    return {kind.type: event_schema(kind) for kind in EVENT_TYPES}
