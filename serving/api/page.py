"""The chat page: static files, and the headers that keep a model's output from doing harm in the browser."""

import os
from collections.abc import Mapping
from pathlib import Path

from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

STATIC_DIRECTORY = Path(__file__).parent / "static"

CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data:",
        "font-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        # A string can become markup only through the sanitiser.
        "require-trusted-types-for 'script'",
        "trusted-types dompurify",
    )
)

SECURITY_HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), display-capture=(), geolocation=(), microphone=(), payment=(), usb=(), "
    "clipboard-write=(self)",
}

REVALIDATE = "no-cache"
IMMUTABLE = "public, max-age=31536000, immutable"


class PageFiles(StaticFiles):
    """Static files with the page's security headers and a caching rule for each folder.

    The page's own files are revalidated by ETag at every load, so that a new release never mixes with an old one. The
    folders in `vendor/` carry a version in their name and never change.
    """

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers.update(SECURITY_HEADERS)
        vendored = path.startswith("vendor" + os.sep)
        response.headers["Cache-Control"] = IMMUTABLE if vendored else REVALIDATE
        return response


def page_routes() -> list[BaseRoute]:
    """The routes of the chat page: `/` and `/static/...`; put them beside the API's own in one application."""
    files = PageFiles(directory=STATIC_DIRECTORY)
    compression = Middleware(GZipMiddleware, minimum_size=1024)

    async def index(request: Request) -> Response:
        return await files.get_response("index.html", request.scope)

    return [
        Route("/", index, methods=["GET"], name="page", middleware=[compression]),
        Mount("/static", files, name="static", middleware=[compression]),
    ]
