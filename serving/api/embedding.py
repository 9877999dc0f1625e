"""Texts to embed, whatever protocol they come by: one admission, one count."""

from dataclasses import dataclass

import numpy as np

from serving.api.caller import Caller
from serving.api.embedding_body import EmbeddingBody, check_total
from serving.api.request_events import recorded_request
from serving.api.service import Service
from serving.engine.embedding import EmbedRequest
from serving.gateway.ask import Ask


@dataclass(frozen=True, slots=True)
class Embedded:
    model: str
    vectors: np.ndarray  # [texts, D] float32
    tokens: int


async def embedded(service: Service, body: EmbeddingBody, caller: Caller) -> Embedded:
    """Raises WeftError."""
    embedder = service.embedder_of(body.model)
    body.check_dimensions(embedder.facts)
    body.check_input()
    texts = body.token_ids or await embedder.tokenize(body.strings)
    request = EmbedRequest(request_id=caller.request_id, texts=texts, model=embedder.model)
    check_total(request.tokens)
    ask = Ask.of_texts(request, model=embedder.name)
    with recorded_request(service.events, caller, embedder.name, body.user) as recorded:
        async with service.gateway.admit(caller.principal, ask) as lease:
            recorded.admitted(lease)
            caller.reply_fields.update(lease.metadata)
            vectors = await embedder.embedder.embed(request)
    service.metrics.embedded(embedder.name, len(request.texts), request.tokens)
    return Embedded(embedder.name, embedder.facts.cut(vectors, body.dimensions), request.tokens)
