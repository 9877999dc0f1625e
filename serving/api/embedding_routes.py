"""POST /v1/embeddings."""

import asyncio
import base64
from typing import Any

import msgspec
import numpy as np
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from serving.api.caller import Caller
from serving.api.connection import while_connected
from serving.api.embedding_body import EmbeddingBody, check_total
from serving.api.request_body import read_typed
from serving.api.service import Service
from serving.engine.embedding import EmbedRequest
from serving.errors import NotFoundError
from serving.gateway.ask import Ask
from serving.generation.text_embedder import TextEmbedder


def embedding_routes(service: Service, encoder: TextEmbedder, max_body_bytes: int) -> list[Route]:
    async def embeddings(request: Request) -> Response:
        body = await read_typed(request, EmbeddingBody, max_body_bytes)
        if body.model not in (None, encoder.name):
            raise NotFoundError(
                f"the model {body.model[:100]!r} embeds nothing here; this server's encoder is {encoder.name!r}",
                param="model",
                code="model_not_found",
            )
        body.check_dimensions(encoder.facts.dimensions)
        body.check_input()
        reply = await while_connected(request.receive, _embedded(service, encoder, body, request.state.caller))
        return Response(reply, media_type="application/json")

    return [Route("/v1/embeddings", embeddings, methods=["POST"])]


async def _embedded(service: Service, encoder: TextEmbedder, body: EmbeddingBody, caller: Caller) -> bytes:
    texts = body.token_ids or await encoder.tokenize(body.strings)
    request = EmbedRequest(request_id=caller.request_id, texts=texts)
    check_total(request.tokens)
    async with service.gateway.admit(caller.principal, Ask.of_texts(request, model=encoder.name)) as lease:
        caller.reply_fields.update(lease.metadata)
        vectors = await encoder.embedder.embed(request)
    service.metrics.embedded(encoder.name, len(request.texts), request.tokens)
    return await asyncio.to_thread(_reply, encoder.name, vectors, request.tokens, body.encoding_format)


def _reply(model: str, vectors: np.ndarray, tokens: int, encoding: str | None) -> bytes:
    def written(vector: np.ndarray) -> Any:
        if encoding == "base64":
            return base64.b64encode(vector.astype("<f4").tobytes()).decode()
        return vector.tolist()

    data = [{"object": "embedding", "index": at, "embedding": written(vector)} for at, vector in enumerate(vectors)]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return msgspec.json.encode({"object": "list", "data": data, "model": model, "usage": usage})
