"""GET /status, /status.json and the page's own files: complete in themselves, so the admin listener has them too."""

from pathlib import Path

import msgspec
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from serving.api.page import REVALIDATE, SECURITY_HEADERS
from serving.api.status.board import StatusBoard

PAGE_DIRECTORY = Path(__file__).parent / "page"

CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",  # nothing here becomes markup from a string
    )
)


class StatusFiles(StaticFiles):
    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers.update({**SECURITY_HEADERS, "Content-Security-Policy": CONTENT_SECURITY_POLICY})
        response.headers["Cache-Control"] = REVALIDATE
        return response


def status_routes(board: StatusBoard) -> list[BaseRoute]:
    files = StatusFiles(directory=PAGE_DIRECTORY)
    compression = Middleware(GZipMiddleware, minimum_size=1024)

    async def page(request: Request) -> Response:
        return await files.get_response("index.html", request.scope)

    async def numbers(_: Request) -> Response:
        body = msgspec.json.encode(await board.shown())
        return Response(body, media_type="application/json", headers={"cache-control": "no-store"})

    return [
        Route("/status", page, methods=["GET"], middleware=[compression]),
        Route("/status.json", numbers, methods=["GET"], middleware=[compression]),
        Mount("/status", files, middleware=[compression]),
    ]
