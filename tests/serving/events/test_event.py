import jsonschema
import pytest

from serving.events import event_types
from serving.events.event import event_schema, event_schemas
from serving.events.event_types import EVENT_TYPES, EventData


def test_every_type_has_a_valid_schema_and_says_what_it_is() -> None:
    schemas = event_schemas()
    for kind in EVENT_TYPES:
        schema = schemas[kind.type]
        jsonschema.Draft202012Validator.check_schema(schema)
        assert kind.type.startswith(f"weft.{kind.group}.")
        assert kind.type.endswith(".v1")
    assert len(schemas) == len(EVENT_TYPES)


def test_no_type_is_left_out() -> None:
    made = [kind for kind in vars(event_types).values() if isinstance(kind, type) and issubclass(kind, EventData)]
    assert {kind for kind in made if "type" in vars(kind)} - {EventData} == set(EVENT_TYPES)


def test_a_schema_refuses_what_is_not_of_its_type() -> None:
    schema = event_schema(event_types.ServerDrained)
    event = {
        "specversion": "1.0",
        "id": "a",
        "source": "weft://host/m",
        "type": "weft.server.drained.v1",
        "time": "2026-11-01T12:00:00Z",
        "datacontenttype": "application/json",
        "withtext": False,
        "data": {"open_streams": 1, "left_streams": 0, "seconds": 0.5},
    }
    jsonschema.validate(event, schema)
    for wrong in ({"type": "weft.server.drained.v2"}, {"data": {"open_streams": -1}}, {"withtext": None}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**event, **wrong}, schema)
