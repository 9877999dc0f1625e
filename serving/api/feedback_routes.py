"""POST /v1/feedback: what a client thinks of an answer.

    {"id" or "response_id", "rating": "up" | "down", "reason", "user"}: {"object": "feedback", "id", "rating", "known"}

The id is that of the reply, or the request's (X-Request-Id). `known` says whether this server could tell that the
answer is one of its own to this tenant: it knows stored responses, and what this API process has answered of late.
"""

import re
from typing import Annotated, ClassVar

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from serving.api.answered import Answer, Rating
from serving.api.caller import Caller
from serving.api.request_body import read_typed
from serving.api.responses.body import MAX_USER_CHARS
from serving.api.service import Service
from serving.api.typed_body import Body
from serving.errors import NotFoundError, RequestError
from serving.events.event_types import FeedbackGiven
from serving.gateway.principal import ANONYMOUS
from serving.sessions.conversations.conversations import Conversations
from serving.sessions.conversations.ids import RESPONSE
from serving.sessions.conversations.records import Owner

MAX_ID_CHARS = 128
MAX_REASON_CHARS = 2000
UNKNOWN_MODEL = "unknown"  # for the metric, of an answer that another process has given, or this one long ago
_BODY_BYTES = 64 << 10
_OF_REQUEST = re.compile(r"(?:chatcmpl-|cmpl-|msg_)?([0-9a-f]{32})")

Id = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_ID_CHARS)]


class FeedbackBody(Body, kw_only=True):
    words: ClassVar = {"rating": ("up", "down")}

    id: Id | None = None
    response_id: Id | None = None
    rating: Rating
    reason: Annotated[str, msgspec.Meta(max_length=MAX_REASON_CHARS)] | None = None
    user: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_USER_CHARS)] | None = None

    @property
    def rated(self) -> str:
        """Raises RequestError."""
        if (self.id is None) == (self.response_id is None):
            raise RequestError(
                "id must say which answer is rated; response_id is another name for it, so that one of them is given",
                param="id",
                code="invalid_value",
            )
        return self.id or self.response_id or ""


def feedback_routes(service: Service, conversations: Conversations) -> list[Route]:
    async def rate(request: Request) -> Response:
        body = await read_typed(request, FeedbackBody, _BODY_BYTES)
        caller: Caller = request.state.caller
        answer = await _answer(service, conversations, caller, body.rated)
        is_new = answer is None or answer.rating != body.rating  # the same again may bring a reason, and is no other
        if is_new:
            service.metrics.rated(UNKNOWN_MODEL if answer is None else answer.model, body.rating)
        if is_new or body.reason:
            _record(service, caller, body, answer)
        if answer is not None:
            answer.rating = body.rating
        told = {"object": "feedback", "id": body.rated, "rating": body.rating, "known": answer is not None}
        return JSONResponse(told)

    return [Route("/v1/feedback", rate, methods=["POST"])]


async def _answer(service: Service, conversations: Conversations, caller: Caller, rated: str) -> Answer | None:
    """None where it may be this server's. Raises NotFoundError where it is none, or is another tenant's."""
    tenant = caller.principal.tenant
    of_request = _OF_REQUEST.fullmatch(rated)
    found = service.answered.get(rated if of_request is None else of_request[1])
    if found is not None and found.tenant == tenant:
        return found
    if found is None and of_request is not None:
        return None
    if found is None and rated.startswith(f"{RESPONSE}_"):
        stored = await conversations.find(Owner(tenant), rated)  # its error names it
        if "id" in stored.facts:
            return Answer(tenant, stored.facts["model"], "")
    raise NotFoundError(f"there is no answer {rated!r} here", param="id", code="answer_not_found")


def _record(service: Service, caller: Caller, body: FeedbackBody, answer: Answer | None) -> None:
    log, principal = service.events, caller.principal
    if not log.records(FeedbackGiven.group):
        return
    of_request = _OF_REQUEST.fullmatch(body.rated)
    given = FeedbackGiven(
        tenant=principal.tenant,
        answer=body.rated,
        rating=body.rating,
        known=answer is not None,
        model=None if answer is None else answer.model,
        key=None if principal.key_id == ANONYMOUS else log.name_of(principal.tenant, principal.key_id),
        user=log.name_of(principal.tenant, body.user) if body.user else None,
        reason=log.text_of(body.reason) if body.reason else None,
    )
    request_id = (answer.request_id if answer is not None else None) or (of_request and of_request[1])
    log.add(given, request_id or None)
