"""What POST /v1/moderations reads."""

from typing import Annotated, ClassVar, Literal

import msgspec

from serving.api.typed_body import Body
from serving.errors import RequestError

MAX_TEXTS = 256


class TextPart(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: Literal["text"]
    text: str


class ModerationBody(Body, kw_only=True):
    words: ClassVar = {"input[].type": ("text",)}

    model: str | None = None
    input: str | Annotated[list[str | TextPart], msgspec.Meta(min_length=1, max_length=MAX_TEXTS)]

    @property
    def texts(self) -> list[str]:
        """One a result: of parts there is one. Raises RequestError where strings and parts are mixed."""
        items = [self.input] if isinstance(self.input, str) else self.input
        strings = [item for item in items if isinstance(item, str)]
        if len(strings) == len(items):
            return strings
        if strings:
            raise RequestError(
                "input is a list of strings or of parts, not of both", param="input", code="invalid_value"
            )
        return ["\n".join(item.text for item in items if isinstance(item, TextPart))]
