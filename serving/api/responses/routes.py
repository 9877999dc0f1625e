"""POST, GET and DELETE under /v1/responses."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from serving.api.connection import while_connected
from serving.api.error_reply import error_code
from serving.api.generating_body import read_generating
from serving.api.listing import page_of
from serving.api.queue_notice import is_wanted, notice_of, with_notices
from serving.api.responses.body import INCLUDES, ResponsesBody
from serving.api.responses.items import shown
from serving.api.responses.live import LiveResponses
from serving.api.responses.made import MadeResponse, TurnService
from serving.api.responses.outline import whole
from serving.api.responses.output import Told
from serving.api.responses.replay import replayed
from serving.api.sse import EventStream, Terminal
from serving.api.stream_routes import on_break
from serving.api.turns import ModelCalls
from serving.errors import NotFoundError, RequestError, WeftError
from serving.sessions.conversations.records import Owner, StoredTurn

_POLL_SECONDS = 0.5  # of a response that another process makes
_BOOLEANS = {"true": True, "false": False}


def response_routes(turns: TurnService, live: LiveResponses, max_body_bytes: int) -> list[Route]:
    service = turns.service

    async def create(request: Request) -> Response:
        body = await read_generating(request, ResponsesBody, max_body_bytes, service)
        service.check_model(body.model)
        made = MadeResponse(turns, body, request.state.caller)
        request.state.generation = made.generation
        if body.background:
            begun = await live.start(made)
            if not body.stream:
                return JSONResponse(begun)
            started = live.get(made.id)
            assert started is not None
            return _stream(request, started.follow(-1), made.generation)
        if body.stream:
            return _stream(request, made.events(), made.generation)
        return JSONResponse(await while_connected(request.receive, made.whole()))

    async def read(request: Request) -> Response:
        include = include_of(request)
        response_id = request.path_params["response_id"]
        after = _starting_after(request)
        stored = await _find(turns, request)
        if not _flag(request, "stream"):
            if after is not None:
                raise RequestError(
                    "starting_after needs stream to be true", param="starting_after", code="invalid_value"
                )
            return JSONResponse(whole(stored.facts, stored.outputs, include))
        if not stored.facts["background"]:
            raise RequestError(
                "stream is for responses that were made with background: the events of others are not kept",
                param="stream",
                code="invalid_value",
            )
        made_here = live.get(response_id)
        if made_here is not None:
            return _stream(request, made_here.follow(-1 if after is None else after))
        return _stream(request, _ended_elsewhere(turns, request, include, after))

    async def cancel(request: Request) -> Response:
        stored = await _find(turns, request)
        if not stored.facts["background"]:
            raise RequestError(
                "only a response made with background can be cancelled: end the connection of another",
                code="not_in_background",
            )
        if live.get(stored.turn.id) is None:
            await turns.conversations.ask_end(owner_of(request), stored.turn.id)
        await live.cancel(stored.turn.id)
        stored = await _find(turns, request)
        return JSONResponse(whole(stored.facts, stored.outputs))

    async def delete(request: Request) -> Response:
        await turns.conversations.delete(owner_of(request), request.path_params["response_id"])
        return JSONResponse({"id": request.path_params["response_id"], "object": "response", "deleted": True})

    async def inputs(request: Request) -> Response:
        stored = await _find(turns, request)
        return JSONResponse(item_page(request, [shown(item) for item in stored.inputs]))

    def _stream(request: Request, events: AsyncGenerator[Told, None], waiting: ModelCalls | None = None) -> EventStream:
        terminal, broken = Terminal(done=b"", failed=_failed), on_break(service, request)
        if waiting is None or not is_wanted(request):
            return EventStream(_frames(events), service.streams, broken, terminal=terminal)
        limits, place = with_notices(service.streams), notice_of(waiting)
        return EventStream(_frames(events), limits, broken, heartbeat=place, terminal=terminal)

    return [
        Route("/v1/responses", create, methods=["POST"]),
        Route("/v1/responses/{response_id}", read, methods=["GET"]),
        Route("/v1/responses/{response_id}", delete, methods=["DELETE"]),
        Route("/v1/responses/{response_id}/cancel", cancel, methods=["POST"]),
        Route("/v1/responses/{response_id}/input_items", inputs, methods=["GET"]),
    ]


def owner_of(request: Request) -> Owner:
    """The caller's tenant: an id is found by it alone."""
    return Owner(request.state.caller.principal.tenant)


def include_of(request: Request) -> Sequence[str]:
    """Raises RequestError for what cannot be included."""
    found = [*request.query_params.getlist("include"), *request.query_params.getlist("include[]")]
    for name in found:
        if name not in INCLUDES:
            raise RequestError(
                f"include must be {' or '.join(INCLUDES)}, not {name[:100]!r}", param="include", code="invalid_value"
            )
    return found


def item_page(request: Request, items: list[dict[str, Any]]) -> dict[str, Any]:
    """One page of items that stand oldest first. Raises RequestError, and NotFoundError for an `after` that is none of
    them."""

    def missing(after: str) -> NotFoundError:
        return NotFoundError(f"there is no item {after[:100]!r} here", param="after", code="item_not_found")

    return page_of(request, items, missing)


async def _find(turns: TurnService, request: Request) -> StoredTurn:
    """Raises NotFoundError, also for items that a client has put into a conversation: they are no response."""
    name = request.path_params["response_id"]
    stored = await turns.conversations.find(owner_of(request), name)
    if "id" not in stored.facts:
        raise NotFoundError(f"there is no response {name[:100]!r} here", code="response_not_found")
    return stored


async def _ended_elsewhere(
    turns: TurnService, request: Request, include: Sequence[str], after: int | None
) -> AsyncGenerator[Told, None]:
    stored = await _find(turns, request)
    while not stored.turn.ended:
        await asyncio.sleep(_POLL_SECONDS)
        stored = await _find(turns, request)
    for event in replayed(stored, include, after):
        yield event


async def _frames(events: AsyncGenerator[Told, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(events):
        async for event in events:
            yield b"event: %b\ndata: %b\n\n" % (event["type"].encode(), msgspec.json.encode(event))


def _failed(error: WeftError) -> bytes:
    told = {"type": "error", "code": error_code(error), "message": error.message, "param": error.param}
    return b"event: error\ndata: %b\n\n" % msgspec.json.encode({**told, "sequence_number": 0})


def _flag(request: Request, name: str) -> bool:
    given = request.query_params.get(name, "false")
    if given not in _BOOLEANS:
        raise RequestError(f"{name} must be true or false", param=name, code="invalid_value")
    return _BOOLEANS[given]


def _starting_after(request: Request) -> int | None:
    given = request.query_params.get("starting_after")
    if given is None:
        return None
    if not (given.isascii() and given.isdecimal() and len(given) <= 9):
        raise RequestError(
            "starting_after must be the sequence_number of an event", param="starting_after", code="invalid_value"
        )
    return int(given)
