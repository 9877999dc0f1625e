"""Bodies as JSON schemas: what msgspec checks, with the parameters that are let through only where they ask for
nothing."""

from collections.abc import Sequence
from typing import Any

import msgspec

from serving.api.typed_body import Body, Refusal

REF = "#/components/schemas/{name}"


def body_schemas(kinds: Sequence[type[Body]]) -> dict[str, Any]:
    """The schema of each kind under its name, and of all that they are made of."""
    _, components = msgspec.json.schema_components(kinds, ref_template=REF)
    for kind in kinds:
        properties = components[kind.__name__]["properties"]
        for name, refusal in kind.refused.items():
            properties.setdefault(name, _refused(refusal))
    return components


def _refused(refusal: Refusal) -> dict[str, Any]:
    return {"enum": [*refusal.neutral, None], "description": f"Not supported: {refusal.reason}."}
