"""What an input is made of: messages, calls and their results, as OpenAI's clients send them, and send back."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import msgspec

from serving.api.typed_body import without_nulls
from serving.sessions.conversations.records import Item

MAX_ITEMS = 4096

Status = Literal["in_progress", "completed", "incomplete", "failed", "searching", "interpreting", "calling"]


class TextPart(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="input_text"):
    text: str


class OutputTextPart(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="output_text"):
    """As an answer comes back from a client."""

    text: str
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None
    parsed: Any = None  # what the SDK read in the text


class RefusalPart(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="refusal"):
    refusal: str


class InputItem(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    id: str | None = None  # what a client sends is stored under an id of the server's
    status: Status | None = None


class MessageItem(InputItem, kw_only=True, tag="message"):
    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[TextPart | OutputTextPart | RefusalPart]


class FunctionCallItem(InputItem, kw_only=True, tag="function_call"):
    call_id: str
    name: str
    arguments: str  # a JSON object
    parsed_arguments: Any = None  # what the SDK read in them


class FunctionResultItem(InputItem, kw_only=True, tag="function_call_output"):
    call_id: str
    output: str | list[TextPart]


class ServerCallItem(InputItem, kw_only=True, tag="mcp_call"):
    server_label: str
    name: str
    arguments: str
    output: str | None = None
    error: Any = None
    approval_request_id: None = None


class FileSearchItem(InputItem, kw_only=True, tag="file_search_call"):
    queries: list[str]
    results: list[dict[str, Any]] | None = None


class CodeItem(InputItem, kw_only=True, tag="code_interpreter_call"):
    container_id: str
    code: str | None = None
    outputs: list[dict[str, Any]] | None = None
    files: list[dict[str, Any]] | None = None  # that the program wrote


class WebSearchItem(InputItem, kw_only=True, tag="web_search_call"):
    action: dict[str, Any]


class ReasoningPart(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="reasoning_text"):
    text: str


class ReasoningItem(InputItem, kw_only=True, tag="reasoning"):
    """As an answer comes back from a client. There are no summaries, and nothing is encrypted."""

    summary: Annotated[list[Any], msgspec.Meta(max_length=0)] | None = None
    content: list[ReasoningPart] | None = None
    encrypted_content: None = None


AnyItem = (
    MessageItem
    | ReasoningItem
    | FunctionCallItem
    | FunctionResultItem
    | ServerCallItem
    | FileSearchItem
    | CodeItem
    | WebSearchItem
)
Items = Annotated[list[AnyItem], msgspec.Meta(min_length=1, max_length=MAX_ITEMS)]

ITEM_TYPES = tuple(str(kind.__struct_config__.tag) for kind in AnyItem.__args__)
_OF_PARTS = ("content", "output", "summary")
_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "mcp_call": "mcp",
    "file_search_call": "fs",
    "code_interpreter_call": "ci",
    "web_search_call": "ws",
}


def item_words(field: str) -> dict[str, tuple[str, ...]]:
    """For the errors about items that stand in a field."""
    return {
        f"{field}[].type": ITEM_TYPES,
        f"{field}[].role": ("user", "assistant", "system", "developer"),
        f"{field}[].content[].type": ("input_text", "output_text", "refusal"),
        f"{field}[].output[].type": ("input_text",),
    }


def plain_items(value: Any) -> Any:
    """A message may leave its type out, and what is null is as left out."""
    if not isinstance(value, list):
        return value
    return [_plain_item(item) if isinstance(item, dict) else item for item in value]


def _plain_item(item: dict[str, Any]) -> dict[str, Any]:
    told = {
        name: [without_nulls(part) for part in value] if name in _OF_PARTS and isinstance(value, list) else value
        for name, value in without_nulls(item).items()
    }
    return {"type": "message", **told} if "role" in told and "type" not in told else told


def id_prefix(item_type: str) -> str:
    return _PREFIXES[item_type]


def stored_items(items: str | Sequence[AnyItem], new_id: Callable[[str], str]) -> list[Item]:
    """As they are kept and shown. `new_id` makes an id for a prefix."""
    if isinstance(items, str):
        items = [MessageItem(role="user", content=items)]
    return [_stored(item, new_id) for item in items]


def reasoning_text(text: str) -> dict[str, Any]:
    return {"type": "reasoning_text", "text": text}


def shown(item: Item) -> Item:
    """Without what only the server reads: members whose names begin with an underscore."""
    return {name: value for name, value in item.items() if not name.startswith("_")}


def _stored(item: AnyItem, new_id: Callable[[str], str]) -> Item:
    made: Item = {name: value for name, value in msgspec.to_builtins(item).items() if value is not None}
    made.pop("parsed_arguments", None)
    made |= {"id": new_id(id_prefix(made["type"])), "status": made.get("status", "completed")}
    if isinstance(item, MessageItem):
        made["content"] = _parts(item)
    return made


def _parts(item: MessageItem) -> list[dict[str, Any]]:
    if not isinstance(item.content, str):
        return [_part(part) for part in item.content]
    if item.role == "assistant":
        return [output_text(item.content)]
    return [{"type": "input_text", "text": item.content}]


def _part(part: TextPart | OutputTextPart | RefusalPart) -> dict[str, Any]:
    if isinstance(part, OutputTextPart):
        return {**output_text(part.text), "annotations": part.annotations or []}
    return msgspec.to_builtins(part)


def output_text(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
