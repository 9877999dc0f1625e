"""The erasure of a tenant's, or of one of its users' data, of the admin listener alone.

    POST  /admin/erase   {"tenant", "user": of whom; all, if left out, "dry_run": true to look only}:
                         {"data": [{"holder", "found": {...}, "erased", "left": why not}]}

Of what several API processes share, all of it; of what is in memory (the semantic cache, responses that are made in the
background) that of the API process that answers.
"""

from collections.abc import Sequence
from typing import Annotated

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from serving.api.request_body import read_typed
from serving.api.typed_body import Body
from serving.sessions.erasure import Erased, Holder, erase_everywhere

_BODY_BYTES = 4096


class EraseBody(Body, kw_only=True):
    tenant: Annotated[str, msgspec.Meta(min_length=1)]
    user: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    dry_run: bool = False


def erasure_routes(holders: Sequence[Holder]) -> list[Route]:
    async def erase(request: Request) -> Response:
        body = await read_typed(request, EraseBody, _BODY_BYTES)
        found = await erase_everywhere(holders, body.tenant, body.user, dry_run=body.dry_run)
        return JSONResponse({"object": "erasure", "data": [_shown(one) for one in found]})

    return [Route("/admin/erase", erase, methods=["POST"])]


def _shown(one: Erased) -> dict[str, object]:
    return {"holder": one.holder, "found": dict(one.found), "erased": one.is_gone, "left": one.left or None}
