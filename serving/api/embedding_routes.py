"""POST /v1/embeddings."""

import asyncio
import base64
from typing import Any

import msgspec
import numpy as np
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from serving.api.connection import while_connected
from serving.api.embedding import Embedded, embedded
from serving.api.embedding_body import EmbeddingBody
from serving.api.request_body import read_typed
from serving.api.service import Service


def embedding_routes(service: Service, max_body_bytes: int) -> list[Route]:
    async def embeddings(request: Request) -> Response:
        body = await read_typed(request, EmbeddingBody, max_body_bytes)
        made = await while_connected(request.receive, embedded(service, body, request.state.caller))
        reply = await asyncio.to_thread(_reply, made, body.encoding_format)
        return Response(reply, media_type="application/json")

    return [Route("/v1/embeddings", embeddings, methods=["POST"])]


def _reply(made: Embedded, encoding: str | None) -> bytes:
    def written(vector: np.ndarray) -> Any:
        if encoding == "base64":
            return base64.b64encode(vector.astype("<f4").tobytes()).decode()
        return vector.tolist()

    data = [
        {"object": "embedding", "index": at, "embedding": written(vector)} for at, vector in enumerate(made.vectors)
    ]
    usage = {"prompt_tokens": made.tokens, "total_tokens": made.tokens}
    return msgspec.json.encode({"object": "list", "data": data, "model": made.model, "usage": usage})
