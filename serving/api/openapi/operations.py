"""Every operation of the public listener, by method and by its route's path."""

from collections.abc import Mapping

from serving.api.batches.batch_body import BatchBody
from serving.api.chat_body import ChatBody
from serving.api.completion_body import CompletionBody
from serving.api.conversations.body import ConversationBody, ItemsBody, MetadataBody
from serving.api.embedding_body import EmbeddingBody
from serving.api.feedback_routes import FeedbackBody
from serving.api.files.expiry import ANCHORS, LEAST_SECONDS, MOST_SECONDS
from serving.api.files.routes import MOST_FILES
from serving.api.files.upload import PURPOSES
from serving.api.memory_routes import MAX_USER_CHARS, MemoryBody
from serving.api.messages.body import CountTokensBody, MessagesBody
from serving.api.moderation_body import ModerationBody
from serving.api.openapi.container_operations import CONTAINER_OPERATIONS
from serving.api.openapi.operation import EVENTS, Operation, Query
from serving.api.openapi.queries import AFTER, ORDER, limit
from serving.api.openapi.vector_store_operations import VECTOR_STORE_OPERATIONS
from serving.api.prefixes.body import PrefixBody
from serving.api.responses.body import INCLUDES, ResponsesBody
from serving.api.tokenize_body import DetokenizeBody, TokenizeBody
from serving.observability.metrics import CONTENT_TYPE

BYTES, HTML, PROMETHEUS = "application/octet-stream", "text/html", CONTENT_TYPE.partition(";")[0]

_HI = [{"role": "user", "content": "hi"}]
_UPLOAD = {
    "type": "object",
    "properties": {
        "file": {"type": "string", "format": "binary"},
        "purpose": {"type": "string", "enum": list(PURPOSES)},
        "expires_after[anchor]": {"type": "string", "enum": list(ANCHORS)},
        "expires_after[seconds]": {"type": "integer", "minimum": LEAST_SECONDS, "maximum": MOST_SECONDS},
    },
    "dependentRequired": {
        "expires_after[anchor]": ["expires_after[seconds]"],
        "expires_after[seconds]": ["expires_after[anchor]"],
    },
    "required": ["file", "purpose"],
    "additionalProperties": False,
}
_INCLUDE = Query(
    name="include",
    schema={"type": "array", "items": {"enum": list(INCLUDES)}},
    says="What is left out of items if not asked for.",
)
_STREAMED = (
    Query(name="stream", schema={"type": "boolean"}, says="The events, of a response made in the background."),
    Query(
        name="starting_after",
        schema={"type": "integer", "minimum": 0, "maximum": 999_999_999},
        says="With stream: the number of the last event that the client has.",
    ),
)

_USER = Query(
    name="user",
    schema={"type": "string", "minLength": 1, "maxLength": MAX_USER_CHARS},
    says="Whose it is, as requests name them.",
)
_ENTRY = Query(name="id", schema={"type": "integer", "minimum": 0}, says="One entry; all of them if not given.")

OPERATIONS: Mapping[tuple[str, str], Operation] = {
    ("POST", "/v1/chat/completions"): Operation(
        says="An answer to messages.",
        body=ChatBody,
        example={"messages": _HI, "max_tokens": 16, "temperature": 0},
        reply="ChatCompletion",
        streams=True,
    ),
    ("POST", "/v1/completions"): Operation(
        says="A continuation of prompts.",
        body=CompletionBody,
        example={"prompt": ["hi", "ho"], "max_tokens": 16},
        reply="Completion",
        streams=True,
    ),
    ("POST", "/v1/embeddings"): Operation(
        says="Vectors of texts.", body=EmbeddingBody, example={"input": ["the cat", "a dog"]}, reply="Embeddings"
    ),
    ("POST", "/v1/moderations"): Operation(
        says="What the judges of this server say of texts.",
        body=ModerationBody,
        example={"input": ["the cat", "a dog"]},
        reply="Moderations",
    ),
    ("POST", "/v1/feedback"): Operation(
        says="Rates an answer.",
        body=FeedbackBody,
        example={"id": f"chatcmpl-{'0' * 32}", "rating": "up"},
        reply="Feedback",
    ),
    ("POST", "/v1/messages"): Operation(
        says="An answer to messages, in Anthropic's protocol.",
        body=MessagesBody,
        example={"messages": _HI, "max_tokens": 16, "system": "Be short."},
        reply="Message",
        streams=True,
        error="MessagesError",
    ),
    ("POST", "/v1/messages/count_tokens"): Operation(
        says="The tokens of a prompt, in Anthropic's protocol.",
        body=CountTokensBody,
        example={"messages": _HI},
        reply="TokenCount",
        error="MessagesError",
    ),
    ("POST", "/v1/responses"): Operation(
        says="A turn: an answer with the calls of tools before it, kept where store is not false.",
        body=ResponsesBody,
        example={"input": "hi", "max_output_tokens": 16},
        reply="Response",
        streams=True,
    ),
    ("GET", "/v1/responses/{response_id}"): Operation(
        says="A stored response.", reply="Response", streams=True, query=(_INCLUDE, *_STREAMED)
    ),
    ("DELETE", "/v1/responses/{response_id}"): Operation(says="Deletes a response.", reply="ResponseEnd"),
    ("POST", "/v1/responses/{response_id}/cancel"): Operation(
        says="Ends a response that is made in the background.", reply="Response"
    ),
    ("GET", "/v1/responses/{response_id}/input_items"): Operation(
        says="What a response was made of.", reply="Items", query=(limit(), ORDER, AFTER)
    ),
    ("POST", "/v1/conversations"): Operation(
        says="A new conversation.",
        body=ConversationBody,
        example={"items": [{"type": "message", "role": "user", "content": "hi"}], "metadata": {"topic": "demo"}},
        reply="Conversation",
    ),
    ("GET", "/v1/conversations/{conversation_id}"): Operation(says="What is known of it.", reply="Conversation"),
    ("POST", "/v1/conversations/{conversation_id}"): Operation(
        says="Changes its metadata.", body=MetadataBody, reply="Conversation"
    ),
    ("DELETE", "/v1/conversations/{conversation_id}"): Operation(
        says="Deletes it, with all that was said in it.", reply="ConversationEnd"
    ),
    ("GET", "/v1/conversations/{conversation_id}/items"): Operation(
        says="What was said in it.", reply="Items", query=(limit(), ORDER, AFTER, _INCLUDE)
    ),
    ("POST", "/v1/conversations/{conversation_id}/items"): Operation(
        says="Adds items at its end.", body=ItemsBody, reply="Items", query=(_INCLUDE,)
    ),
    ("GET", "/v1/conversations/{conversation_id}/items/{item_id}"): Operation(
        says="One of its items.", reply="Item", query=(_INCLUDE,)
    ),
    ("DELETE", "/v1/conversations/{conversation_id}/items/{item_id}"): Operation(
        says="Deletes one of its items.", reply="Conversation"
    ),
    ("POST", "/tokenize"): Operation(
        says="A prompt, or messages, as tokens.", body=TokenizeBody, example={"prompt": "hi"}, reply="Tokens"
    ),
    ("POST", "/detokenize"): Operation(
        says="Tokens as text.", body=DetokenizeBody, example={"tokens": [1, 2]}, reply="Prompt"
    ),
    ("GET", "/v1/memory"): Operation(says="What is remembered of a user.", query=(_USER,), reply="Memory"),
    ("POST", "/v1/memory"): Operation(
        says="Switches a user's memory on or off.",
        body=MemoryBody,
        example={"user": "u-1", "enabled": False},
        reply="Memory",
    ),
    ("DELETE", "/v1/memory"): Operation(
        says="Forgets what is remembered of a user.", query=(_USER, _ENTRY), reply="MemoryEnd"
    ),
    ("POST", "/v1/prefixes"): Operation(
        says="Keeps the beginning of prompts in the cache for a time.",
        body=PrefixBody,
        example={"messages": [{"role": "system", "content": "Be short. " * 40}], "ttl": 600},
        reply="Prefix",
    ),
    ("GET", "/v1/prefixes"): Operation(says="The prefixes that the tenant has pinned.", reply="Prefixes"),
    ("GET", "/v1/prefixes/{prefix_id}"): Operation(says="One of them.", reply="Prefix"),
    ("DELETE", "/v1/prefixes/{prefix_id}"): Operation(says="Lets a prefix go.", reply="PrefixEnd"),
    ("GET", "/v1/models"): Operation(says="The served models.", reply="Models"),
    ("GET", "/v1/tools"): Operation(says="The tools that run here, as requests name them.", reply="Tools"),
    ("GET", "/v1/models/{name:path}"): Operation(says="One served model.", reply="Model"),
    ("GET", "/v1/streams/{stream_id}"): Operation(
        says="A durable stream, read again.",
        media=EVENTS,
        query=(Query(name="after", schema={"type": "string"}, says="The id of the last event that the client has."),),
    ),
    ("DELETE", "/v1/streams/{stream_id}"): Operation(says="Ends a durable stream for all readers.", reply="StreamEnd"),
    ("POST", "/v1/streams/{stream_id}/cancel"): Operation(says="As DELETE of the stream.", reply="StreamEnd"),
    ("POST", "/v1/files"): Operation(says="Keeps a file.", form=_UPLOAD, reply="File"),
    ("GET", "/v1/files"): Operation(
        says="The tenant's files, page by page.",
        reply="Files",
        query=(
            Query(name="purpose", schema={"type": "string"}, says="Only files of this purpose."),
            ORDER,
            limit(MOST_FILES, MOST_FILES),
            AFTER,
        ),
    ),
    ("GET", "/v1/files/{file_id}"): Operation(says="What is known of a file.", reply="File"),
    ("DELETE", "/v1/files/{file_id}"): Operation(says="Deletes a file.", reply="FileEnd"),
    ("GET", "/v1/files/{file_id}/content"): Operation(says="A file's bytes.", media=BYTES),
    ("POST", "/v1/batches"): Operation(
        says="Runs the requests in a file.",
        body=BatchBody,
        example={"input_file_id": "file-0", "endpoint": "/v1/chat/completions", "completion_window": "24h"},
        reply="Batch",
    ),
    ("GET", "/v1/batches"): Operation(
        says="The tenant's batches, the newest first.", reply="Batches", query=(limit(), AFTER)
    ),
    ("GET", "/v1/batches/{batch_id}"): Operation(says="How far a batch is.", reply="Batch"),
    ("POST", "/v1/batches/{batch_id}/cancel"): Operation(says="Ends a batch early.", reply="Batch"),
    **CONTAINER_OPERATIONS,
    **VECTOR_STORE_OPERATIONS,
    ("GET", "/v1/socket"): Operation(says="A WebSocket for several requests at a time: docs/api.md.", status=101),
    ("GET", "/openapi.json"): Operation(says="This document.", reply="Document"),
    ("GET", "/health/live"): Operation(says="The API process runs.", reply="Health", is_open=True),
    ("GET", "/health/ready"): Operation(says="The engine answers.", reply="Health", is_open=True),
    ("GET", "/health"): Operation(says="As /health/ready.", reply="Health", is_open=True),
    ("GET", "/metrics"): Operation(
        says="Metrics, as Prometheus reads them; for keys of scope admin.", media=PROMETHEUS
    ),
    ("GET", "/status.json"): Operation(says="What the status page draws; for keys of scope admin.", reply="Status"),
    ("GET", "/status"): Operation(says="The status page.", media=HTML),
    ("GET", "/status/{path}"): Operation(says="The status page's files.", media="*/*"),
    ("GET", "/"): Operation(says="The chat page.", media=HTML),
    ("GET", "/static/{path}"): Operation(says="The chat page's files.", media="*/*"),
}
