"""GET /openapi.json, for whoever may ask anything."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from serving.api.openapi.document import build_document

PATH = "/openapi.json"


def document_routes() -> list[Route]:
    made: list[bytes] = []

    async def document(request: Request) -> Response:
        if not made:  # of all routes, which are not yet there when this one is
            made.append(msgspec.json.encode(build_document(request.app.routes)))
        return Response(made[0], media_type="application/json")

    return [Route(PATH, document, methods=["GET"])]
