"""What policies have routed to a person, of the admin listener alone.

    GET   /admin/reviews?category=&tenant=&done=&after=&limit=    the newest first
    GET   /admin/reviews/{id}
    POST  /admin/reviews/{id}    {"verdict": "right" | "wrong", "note"}: it is done; "wrong": a false positive

The records hold what users wrote. All API processes of a machine share them.
"""

from dataclasses import asdict
from typing import Annotated, Any, ClassVar

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from serving.api.listing import limit_of, page
from serving.api.request_body import read_typed
from serving.api.typed_body import Body
from serving.errors import NotFoundError, RequestError
from serving.orchestrator.moderation.review import ReviewQueue
from serving.orchestrator.moderation.review_record import MOST_NOTE_CHARS, ReviewFilter, ReviewRecord, ReviewVerdict

_BODY_BYTES = 64 << 10
_DONE = {"true": True, "false": False, None: None}


class ReviewBody(Body, kw_only=True):
    words: ClassVar = {"verdict": ("right", "wrong")}

    verdict: ReviewVerdict
    note: Annotated[str, msgspec.Meta(max_length=MOST_NOTE_CHARS)] | None = None


def review_routes(queue: ReviewQueue | None) -> list[Route]:
    """None: the deployment routes nothing to a person."""

    def records() -> ReviewQueue:
        if queue is None:
            raise NotFoundError(
                "this server routes nothing to a person: moderation.review names no database", code="no_reviews"
            )
        return queue

    async def listed(request: Request) -> Response:
        query = request.query_params
        if query.get("done") not in _DONE:
            raise RequestError("done must be true or false", param="done", code="invalid_value")
        wanted = ReviewFilter(category=query.get("category"), tenant=query.get("tenant"), done=_DONE[query.get("done")])
        limit = limit_of(request)
        found, more = await records().listed(wanted, after=query.get("after"), limit=limit)
        return JSONResponse(page([_shown(record) for record in found], more=more))

    async def one(request: Request) -> Response:
        return JSONResponse(_shown(await records().find(request.path_params["review_id"])))

    async def decide(request: Request) -> Response:
        body = await read_typed(request, ReviewBody, _BODY_BYTES)
        by = request.state.caller.principal.key_id
        record = await records().decide(request.path_params["review_id"], body.verdict, body.note, by)
        return JSONResponse(_shown(record))

    # Ids of earlier releases have slashes.
    return [
        Route("/admin/reviews", listed, methods=["GET"]),
        Route("/admin/reviews/{review_id:path}", one, methods=["GET"]),
        Route("/admin/reviews/{review_id:path}", decide, methods=["POST"]),
    ]


def _shown(record: ReviewRecord) -> dict[str, Any]:
    return {"object": "moderation.review", **asdict(record)}
