"""What answers look like, as far as a client can rely on it."""

from collections.abc import Mapping
from typing import Any

Schema = Mapping[str, Any]

TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
TEXT_OR_NULL: Schema = {"type": ["string", "null"]}


def _object(**members: Schema) -> Schema:
    """With all of them, and maybe more."""
    return {"type": "object", "properties": members, "required": list(members)}


def _list_of(member: Schema) -> Schema:
    return {"type": "array", "items": member}


def _word(*words: str) -> Schema:
    return {"enum": list(words)}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


_FAILURE = _object(message=TEXT, type=TEXT, param=TEXT_OR_NULL, code=TEXT)
_USAGE = _object(prompt_tokens=COUNT, completion_tokens=COUNT, total_tokens=COUNT)
_PAGE = {"object": _word("list"), "first_id": TEXT_OR_NULL, "last_id": TEXT_OR_NULL, "has_more": {"type": "boolean"}}

REPLIES: Mapping[str, Schema] = {
    "Error": _object(error=_FAILURE),
    "MessagesError": _object(type=_word("error"), error=_FAILURE),
    "ChatCompletion": _object(
        id=TEXT,
        object=_word("chat.completion"),
        created=COUNT,
        model=TEXT,
        choices=_list_of(_object(index=COUNT, message=_object(role=_word("assistant")), finish_reason=TEXT)),
        usage=_USAGE,
    ),
    "Completion": _object(
        id=TEXT,
        object=_word("text_completion"),
        created=COUNT,
        model=TEXT,
        choices=_list_of(_object(index=COUNT, text=TEXT, finish_reason=TEXT)),
        usage=_USAGE,
    ),
    "Embeddings": _object(
        object=_word("list"),
        model=TEXT,
        data=_list_of(_object(object=_word("embedding"), index=COUNT, embedding={"type": ["array", "string"]})),
        usage=_object(prompt_tokens=COUNT, total_tokens=COUNT),
    ),
    "Message": _object(
        id=TEXT,
        type=_word("message"),
        role=_word("assistant"),
        model=TEXT,
        content=_list_of(_object(type=_word("text", "tool_use"))),
        stop_reason=_word("end_turn", "max_tokens", "stop_sequence", "tool_use"),
        stop_sequence=TEXT_OR_NULL,
        usage=_object(input_tokens=COUNT, cache_read_input_tokens=COUNT, output_tokens=COUNT),
    ),
    "Response": _object(
        id=TEXT,
        object=_word("response"),
        created_at=COUNT,
        status=_word("queued", "in_progress", "completed", "incomplete", "failed", "cancelled"),
        model=TEXT,
        output=_list_of(_ref("Item")),
        store={"type": "boolean"},
        previous_response_id=TEXT_OR_NULL,
        left_out=_list_of(_object(kind=TEXT, id=TEXT, tokens=COUNT)),
    ),
    "ResponseEnd": _object(id=TEXT, object=_word("response"), deleted={"const": True}),
    "Item": _object(id=TEXT, type=TEXT, status=TEXT),
    "Items": {**_object(**_PAGE, data=_list_of(_ref("Item")))},
    "Conversation": _object(id=TEXT, object=_word("conversation"), created_at=COUNT, metadata={"type": "object"}),
    "ConversationEnd": _object(id=TEXT, object=_word("conversation.deleted"), deleted={"const": True}),
    "TokenCount": _object(input_tokens=COUNT),
    "Tokens": _object(count=COUNT, max_model_len=COUNT, tokens=_list_of(COUNT)),
    "Prompt": _object(prompt=TEXT),
    "Model": _object(id=TEXT, object=_word("model"), created=COUNT, owned_by=TEXT, max_model_len=COUNT),
    "Models": _object(object=_word("list"), data=_list_of(_ref("Model"))),
    "StreamEnd": _object(id=TEXT, object=_word("stream"), cancelled={"const": True}),
    "File": _object(id=TEXT, object=_word("file"), bytes=COUNT, created_at=COUNT, filename=TEXT, purpose=TEXT),
    "Files": {**_object(**_PAGE, data=_list_of(_ref("File")))},
    "FileEnd": _object(id=TEXT, object=_word("file"), deleted={"const": True}),
    "Batch": _object(
        id=TEXT,
        object=_word("batch"),
        endpoint=TEXT,
        status=TEXT,
        input_file_id=TEXT,
        output_file_id=TEXT_OR_NULL,
        error_file_id=TEXT_OR_NULL,
        created_at=COUNT,
        expires_at=COUNT,
        request_counts=_object(total=COUNT, completed=COUNT, failed=COUNT),
    ),
    "Batches": {**_object(**_PAGE, data=_list_of(_ref("Batch")))},
    "Status": _object(model=TEXT, version=TEXT, state=_word("ready", "starting", "draining", "away"), rung=TEXT),
    "Health": _object(status=_word("live", "ready")),
    "Document": _object(openapi=TEXT, info=_object(title=TEXT, version=TEXT), paths={"type": "object"}),
}
