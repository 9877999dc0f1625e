"""What answers look like, as far as a client can rely on it."""

from collections.abc import Mapping

from serving.api.openapi.shapes import COUNT, TEXT, TEXT_OR_NULL, Schema, end_of, list_of, object_of, page_of, ref, word
from serving.api.openapi.vector_store_replies import VECTOR_STORE_REPLIES

_FAILURE = object_of(message=TEXT, type=TEXT, param=TEXT_OR_NULL, code=TEXT)
_USAGE = object_of(prompt_tokens=COUNT, completion_tokens=COUNT, total_tokens=COUNT)

REPLIES: Mapping[str, Schema] = {
    **VECTOR_STORE_REPLIES,
    "Error": object_of(error=_FAILURE),
    "MessagesError": object_of(type=word("error"), error=_FAILURE),
    "ChatCompletion": object_of(
        id=TEXT,
        object=word("chat.completion"),
        created=COUNT,
        model=TEXT,
        choices=list_of(object_of(index=COUNT, message=object_of(role=word("assistant")), finish_reason=TEXT)),
        usage=_USAGE,
    ),
    "Completion": object_of(
        id=TEXT,
        object=word("text_completion"),
        created=COUNT,
        model=TEXT,
        choices=list_of(object_of(index=COUNT, text=TEXT, finish_reason=TEXT)),
        usage=_USAGE,
    ),
    "Embeddings": object_of(
        object=word("list"),
        model=TEXT,
        data=list_of(object_of(object=word("embedding"), index=COUNT, embedding={"type": ["array", "string"]})),
        usage=object_of(prompt_tokens=COUNT, total_tokens=COUNT),
    ),
    "Moderations": object_of(
        id=TEXT,
        model=TEXT,
        results=list_of(
            object_of(
                flagged={"type": "boolean"},
                categories={"type": "object", "additionalProperties": {"type": "boolean"}},
                category_scores={"type": "object", "additionalProperties": {"type": "number"}},
                category_applied_input_types={"type": "object", "additionalProperties": list_of(word("text"))},
            )
        ),
    ),
    "Feedback": object_of(object=word("feedback"), id=TEXT, rating=word("up", "down"), known={"type": "boolean"}),
    "Message": object_of(
        id=TEXT,
        type=word("message"),
        role=word("assistant"),
        model=TEXT,
        content=list_of(object_of(type=word("text", "thinking", "tool_use"))),
        stop_reason=word("end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal"),
        stop_sequence=TEXT_OR_NULL,
        usage=object_of(input_tokens=COUNT, cache_read_input_tokens=COUNT, output_tokens=COUNT),
    ),
    "Response": object_of(
        id=TEXT,
        object=word("response"),
        created_at=COUNT,
        status=word("queued", "in_progress", "completed", "incomplete", "failed", "cancelled"),
        model=TEXT,
        output=list_of(ref("Item")),
        store={"type": "boolean"},
        previous_response_id=TEXT_OR_NULL,
        left_out=list_of(object_of(kind=TEXT, id=TEXT, tokens=COUNT)),
    ),
    "ResponseEnd": end_of("response"),
    "Item": object_of(id=TEXT, type=TEXT, status=TEXT),
    "Items": page_of("Item"),
    "Conversation": object_of(id=TEXT, object=word("conversation"), created_at=COUNT, metadata={"type": "object"}),
    "ConversationEnd": end_of("conversation.deleted"),
    "TokenCount": object_of(input_tokens=COUNT),
    "Tokens": object_of(count=COUNT, max_model_len=COUNT, tokens=list_of(COUNT)),
    "Prompt": object_of(prompt=TEXT),
    "Model": object_of(id=TEXT, object=word("model"), created=COUNT, owned_by=TEXT, max_model_len=COUNT),
    "Models": object_of(object=word("list"), data=list_of(ref("Model"))),
    "Tools": object_of(
        object=word("list"),
        data=list_of(
            object_of(object=word("tool"), type=TEXT, functions=list_of(object_of(name=TEXT, description=TEXT)))
        ),
    ),
    "StreamEnd": object_of(id=TEXT, object=word("stream"), cancelled={"type": "boolean"}),
    "Memory": object_of(
        object=word("memory"),
        user=TEXT,
        enabled={"type": "boolean"},
        strategy=TEXT,
        data=list_of(object_of(id=TEXT, level=COUNT, text=TEXT, created_at=COUNT)),
    ),
    "MemoryEnd": object_of(object=word("memory.deleted"), user=TEXT, deleted=COUNT),
    "Prefix": object_of(id=TEXT, object=word("prefix"), expires_at=COUNT, tokens=COUNT, held_tokens=COUNT),
    "Prefixes": object_of(object=word("list"), data=list_of(ref("Prefix"))),
    "PrefixEnd": end_of("prefix"),
    "File": object_of(
        id=TEXT,
        object=word("file"),
        bytes=COUNT,
        created_at=COUNT,
        expires_at={"type": ["integer", "null"]},
        filename=TEXT,
        purpose=TEXT,
    ),
    "Files": page_of("File"),
    "FileEnd": end_of("file"),
    "Container": object_of(
        id=TEXT,
        object=word("container"),
        created_at=COUNT,
        status=word("running"),
        expires_after=object_of(anchor=word("last_active_at"), minutes=COUNT),
        last_active_at=COUNT,
        name=TEXT,
    ),
    "Containers": page_of("Container"),
    "ContainerEnd": end_of("container.deleted"),
    "ContainerFile": object_of(
        id=TEXT,
        object=word("container.file"),
        container_id=TEXT,
        path=TEXT,
        bytes=COUNT,
        created_at=COUNT,
        source=word("user", "assistant"),
    ),
    "ContainerFiles": page_of("ContainerFile"),
    "ContainerFileEnd": end_of("container.file.deleted"),
    "Batch": object_of(
        id=TEXT,
        object=word("batch"),
        endpoint=TEXT,
        status=TEXT,
        input_file_id=TEXT,
        output_file_id=TEXT_OR_NULL,
        error_file_id=TEXT_OR_NULL,
        created_at=COUNT,
        expires_at=COUNT,
        request_counts=object_of(total=COUNT, completed=COUNT, failed=COUNT),
    ),
    "Batches": page_of("Batch"),
    "Status": object_of(model=TEXT, version=TEXT, state=word("ready", "starting", "draining", "away"), rung=TEXT),
    "Health": object_of(status=word("live", "ready")),
    "Document": object_of(openapi=TEXT, info=object_of(title=TEXT, version=TEXT), paths={"type": "object"}),
}
