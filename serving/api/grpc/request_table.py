"""A message of `weft.v1` to the table that an HTTP body would be, so that one reader and one validator serve both."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from serving.api.chat_body import ChatBody
from serving.api.completion_body import CompletionBody
from serving.api.sampling_body import MAX_TIMEOUT_SECONDS
from serving.api.strict_json import MAX_CONTAINERS, join_path, parse_value
from serving.api.tokenize_body import DetokenizeBody, TokenizeBody
from serving.api.typed_body import typed
from serving.client import schema
from serving.errors import RequestError

_JSON = "_json"  # the end of the names of fields that hold JSON
_LISTS = {schema.TokenIds: "ids", schema.Messages: "messages"}  # messages that are there to be in a oneof
_LEAST_SECONDS = 1e-3  # 0 would be no deadline
_OWN_NAMES = {"prompt_token_ids": "prompt"}  # fields that the table has under another name


def parsed(kind: type[Message], data: bytes) -> Message:
    """Raises RequestError for bytes that are not such a message."""
    try:
        return kind.FromString(data)
    except DecodeError:
        raise RequestError(
            f"the message is not a valid {kind.DESCRIPTOR.full_name}", param="the message", code="invalid_message"
        ) from None


@dataclass(frozen=True, slots=True)
class Asked:
    """A generation. `names` are fields of the message that have another name in the body."""

    body: ChatBody | CompletionBody
    names: Mapping[str, str]


def generate_request(data: bytes, *, stream: bool, seconds_left: float | None) -> Asked:
    """`seconds_left` are those until the call's deadline, by which the generation ends too. Raises RequestError that
    names the field at fault."""
    message = parsed(schema.GenerateRequest, data)
    table = request_table(message)
    given = message.WhichOneof("input")
    if given is None:
        raise RequestError(
            "prompt, prompt_token_ids or messages is required", param="prompt", code="missing_required_parameter"
        )
    if stream:
        table["stream"] = True
    if seconds_left is not None:
        table.setdefault("timeout_seconds", min(max(seconds_left, _LEAST_SECONDS), MAX_TIMEOUT_SECONDS))
    if given != "messages":
        names = {"prompt": given}
        with named_for_client(names):
            return Asked(typed(CompletionBody, table), names)
    if "logprobs" in table:
        table |= {"logprobs": True, "top_logprobs": table["logprobs"]}
    names = {"top_logprobs": "logprobs"}
    with named_for_client(names):
        return Asked(typed(ChatBody, table), names)


def tokenize_body(data: bytes) -> TokenizeBody:
    """Raises RequestError that names the field at fault."""
    body = typed(TokenizeBody, request_table(parsed(schema.TokenizeRequest, data)))
    body.check_together()
    return body


def detokenize_body(data: bytes) -> DetokenizeBody:
    """Raises RequestError that names the field at fault."""
    return typed(DetokenizeBody, {"tokens": []} | request_table(parsed(schema.DetokenizeRequest, data)))


def request_table(message: Message) -> dict[str, Any]:
    """Fields that are set, by name. Raises RequestError for what this server does not know: fields, words of enums."""
    return _Walk().table(message, "")


@contextmanager
def named_for_client(names: Mapping[str, str]) -> Iterator[None]:
    """Errors about a parameter that the body has under another name say the message's."""
    try:
        yield
    except RequestError as error:
        param = error.param or ""
        head = param.partition("[")[0]
        if names.get(head, head) == head:
            raise
        message = error.message.replace(head, names[head], 1)
        raise type(error)(message, param=names[head] + param[len(head) :], code=error.code) from None


class _Walk:
    """Over one message and those in it."""

    def __init__(self) -> None:
        self._containers = 0

    def table(self, message: Message, path: str) -> dict[str, Any]:
        self._count()
        _refuse_unknown(message, path)
        table: dict[str, Any] = {}
        for field, value in message.ListFields():
            name = field.name.removesuffix(_JSON)
            where = join_path(path, field.name)
            if name != field.name:
                table[name] = parse_value(value, where, join_path(path, name))
            else:
                table[_OWN_NAMES.get(name, name)] = self._field(field, value, where)
        return table

    def _field(self, field: FieldDescriptor, value: Any, path: str) -> Any:
        kind = field.message_type
        if kind is not None and kind.GetOptions().map_entry:
            self._count(len(value))
            return {str(key): _finite(number, join_path(path, str(key))) for key, number in value.items()}
        if not field.is_repeated:
            return self._item(field, value, path)
        if field.type in (FieldDescriptor.TYPE_MESSAGE, FieldDescriptor.TYPE_ENUM):
            return [self._item(field, item, join_path(path, i)) for i, item in enumerate(value)]
        return list(value)

    def _item(self, field: FieldDescriptor, value: Any, path: str) -> Any:
        if type(value) in _LISTS:
            inner = value.DESCRIPTOR.fields_by_name[_LISTS[type(value)]]
            _refuse_unknown(value, path)
            return self._field(inner, getattr(value, inner.name), path)
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            return self.table(value, path)
        if field.type == FieldDescriptor.TYPE_ENUM:
            return _word(field, value, path)
        return _finite(value, path) if isinstance(value, float) else value

    def _count(self, containers: int = 1) -> None:
        self._containers += containers
        if self._containers > MAX_CONTAINERS:
            raise RequestError(f"the message holds more than {MAX_CONTAINERS} messages", code="too_many_values")


def _refuse_unknown(message: Message, path: str) -> None:
    """Protobuf would let them pass unread: a newer client's parameters would be ignored."""
    for field in UnknownFieldSet(message):
        raise RequestError(
            f"field number {field.field_number} of {message.DESCRIPTOR.full_name} is not known to this server",
            param=f"{path}.{field.field_number}" if path else str(field.field_number),
            code="unknown_parameter",
        )


def _word(field: FieldDescriptor, number: int, path: str) -> str:
    """ROLE_USER of enum Role is the body's "user"."""
    kind: Any = field.enum_type
    value = kind.values_by_number.get(number)
    if value is None or number == 0:
        known = ", ".join(name for name, known in kind.values_by_name.items() if known.number)
        raise RequestError(f"{path} must be one of {known}, not {number}", param=path, code="invalid_value")
    return value.name.removeprefix(f"{kind.name.upper()}_").lower()


def _finite(value: float, path: str) -> float:
    if not math.isfinite(value):
        raise RequestError(f"{path} must be a finite number, not {value}", param=path, code="invalid_value")
    return value
