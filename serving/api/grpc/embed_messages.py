"""The messages of `Embed`: one to the table that an HTTP body would be, the other from the vectors."""

from collections.abc import Mapping
from dataclasses import dataclass

from serving.api.embedding import Embedded
from serving.api.embedding_body import EmbeddingBody
from serving.api.grpc.request_table import named_for_client, parsed, request_table
from serving.api.typed_body import typed
from serving.client import schema
from serving.errors import RequestError


@dataclass(frozen=True, slots=True)
class AskedTexts:
    """`names` are fields of the message that have another name in the body."""

    body: EmbeddingBody
    names: Mapping[str, str]


def embed_request(data: bytes) -> AskedTexts:
    """Raises RequestError that names the field at fault."""
    table = request_table(parsed(schema.EmbedRequest, data))
    given = [name for name in ("texts", "token_ids") if name in table]
    if len(given) != 1:
        raise RequestError(
            "one of texts and token_ids is required, and not both", param="texts", code="missing_required_parameter"
        )
    table["input"] = table.pop(given[0])
    names = {"input": given[0]}
    with named_for_client(names):
        return AskedTexts(typed(EmbeddingBody, table), names)


def embed_reply(made: Embedded) -> bytes:
    vectors = [schema.Embedding(values=vector) for vector in made.vectors.tolist()]
    reply = schema.EmbedReply(model=made.model, embeddings=vectors, prompt_tokens=made.tokens)
    return reply.SerializeToString()
