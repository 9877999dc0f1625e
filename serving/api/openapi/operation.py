"""What one method of one path takes and gives, beside what its route says."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from serving.api.typed_body import Body

JSON, EVENTS = "application/json", "text/event-stream"

Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    name: str
    schema: Schema
    says: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """`reply` is of status 200. Every operation that asks for a key may fail with `error`, in the statuses of
    docs/api.md."""

    says: str
    reply: str | None = None  # a schema of `replies`, where it is JSON
    media: str = JSON  # of the reply
    streams: bool = False  # the reply may also be server-sent events
    body: type[Body] | None = None
    form: Schema | None = None  # multipart/form-data
    example: Mapping[str, Any] | None = None  # of the body
    query: tuple[Query, ...] = ()
    error: str = "Error"  # a schema of `replies`
    is_open: bool = False  # asks for no key
    status: int = 200
