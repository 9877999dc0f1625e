"""The semantic cache, of the admin listener alone.

    GET   /admin/semantic_cache         {"entries", "bytes"}
    POST  /admin/semantic_cache/clear   {"tenant": of whom; all, if left out}: {"dropped"}

Of the API process that answers: each has its own.
"""

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from serving.api.request_body import read_typed
from serving.api.typed_body import Body
from serving.orchestrator.semantic_cache.semantic_cache import SemanticCache

_BODY_BYTES = 4096


class ClearBody(Body, kw_only=True):
    tenant: str | None = None


def semantic_cache_routes(cache: SemanticCache) -> list[Route]:
    async def shown(_: Request) -> Response:
        entries, size = cache.size
        return JSONResponse({"entries": entries, "bytes": size})

    async def clear(request: Request) -> Response:
        body = await read_typed(request, ClearBody, _BODY_BYTES)
        return JSONResponse({"dropped": cache.drop(body.tenant)})

    return [
        Route("/admin/semantic_cache", shown, methods=["GET"]),
        Route("/admin/semantic_cache/clear", clear, methods=["POST"]),
    ]
