"""When a file goes by itself: OpenAI's `expires_after`, counted from the file's creation."""

import re
from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from serving.api.typed_body import Body, typed

ANCHORS = ("created_at",)
LEAST_SECONDS, MOST_SECONDS = 3600, 30 * 86400
_FIELD = re.compile(r"expires_after\[(\w{1,32})\]")


class ExpiresAfter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    anchor: Literal["created_at"]
    seconds: Annotated[int, msgspec.Meta(ge=LEAST_SECONDS, le=MOST_SECONDS)]


class _Fields(Body, kw_only=True):
    words: ClassVar = {"expires_after.anchor": ANCHORS}

    expires_after: ExpiresAfter | None = None


def is_expiry(field: str) -> bool:
    """Whether a form's field is one of `expires_after[anchor]` and its like."""
    return _FIELD.fullmatch(field) is not None


def expiry_of(fields: Iterable[tuple[str, Any]]) -> ExpiresAfter | None:
    """What a form's fields of this kind say together; None where it has none. Raises RequestError."""
    said: dict[str, Any] = {}
    for field, value in fields:
        found = _FIELD.fullmatch(field)
        if found is not None:
            is_number = found[1] == "seconds" and isinstance(value, str) and re.fullmatch(r"[0-9]{1,10}", value)
            said[found[1]] = int(value) if is_number else value
    return typed(_Fields, {"expires_after": said}).expires_after if said else None
