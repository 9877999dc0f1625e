"""What a client sends over a WebSocket: strict JSON, one object a message.

    {"type": "chat.completions", "id": "a", "body": {...}}    the body of POST /v1/chat/completions
    {"type": "completions", "id": "a", "body": {...}}         the body of POST /v1/completions
    {"type": "read", "id": "a", "stream_id": ..., "after": 7} a durable stream again, from event 8 on
    {"type": "cancel", "id": "a"}

`id` is the client's own name for a request, free again after its last message. In a body, `stream` is true where it is
left out.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from serving.api.chat_body import ChatBody
from serving.api.completion_body import CompletionBody
from serving.api.strict_json import parse_object
from serving.api.typed_body import Body, typed
from serving.errors import RequestError, WeftError

MAX_ID_CHARS = 128

SocketId = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_ID_CHARS)]
Count = Annotated[int, msgspec.Meta(ge=0)]


class SocketMessage(Body, kw_only=True):
    words: ClassVar = {"type": ("chat.completions", "completions", "read", "cancel")}

    type: Literal["chat.completions", "completions", "read", "cancel"]
    id: SocketId
    body: dict[str, Any] | None = None
    stream_id: str | None = None
    after: Count | None = None

    def check_together(self) -> None:
        generates = self.type in _BODIES
        _check_given("body", self.body, wanted=generates, kind=self.type)
        _check_given("stream_id", self.stream_id, wanted=self.type == "read", kind=self.type)
        if self.after is not None and self.type != "read":
            raise RequestError(f"{self.type} takes no after", param="after", code="invalid_value")


@dataclass(frozen=True, slots=True)
class Asked:
    """A message that was understood, or `error` and what of the id could be read."""

    id: str | None
    message: SocketMessage | None = None
    body: ChatBody | CompletionBody | None = None
    error: WeftError | None = None


_BODIES: dict[str, type[ChatBody] | type[CompletionBody]] = {
    "chat.completions": ChatBody,
    "completions": CompletionBody,
}


def asked(data: bytes) -> Asked:
    name: str | None = None
    try:
        table = parse_object(data)
        given = table.get("id")
        name = given if isinstance(given, str) and 0 < len(given) <= MAX_ID_CHARS else None
        message = typed(SocketMessage, table)
        message.check_together()
        body = None
        if message.body is not None:
            body = typed(_BODIES[message.type], {"stream": True} | message.body)
            body.check_together()
        return Asked(name, message, body)
    except RequestError as error:
        return Asked(name, error=error)


def _check_given(name: str, value: object, *, wanted: bool, kind: str) -> None:
    if wanted and value is None:
        raise RequestError(f"{kind} needs {name}", param=name, code="missing_required_parameter")
    if not wanted and value is not None:
        raise RequestError(f"{kind} takes no {name}", param=name, code="invalid_value")
