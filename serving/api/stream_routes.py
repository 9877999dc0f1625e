"""GET and DELETE /v1/streams/{id}: a durable stream read again, by any number of clients, and ended."""

import secrets
from collections.abc import Callable

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from serving.api.caller import Caller
from serving.api.chat_body import ChatBody
from serving.api.chat_reply import ChatReply
from serving.api.completion_body import CompletionBody
from serving.api.completion_reply import CompletionReply
from serving.api.followed_generation import FollowedGeneration
from serving.api.generation import Generation
from serving.api.queue_notice import is_wanted, notice_of, with_notices
from serving.api.service import Service
from serving.api.sse import LEFT, EventStream, StreamPosition
from serving.errors import NotFoundError, RequestError
from serving.gateway.principal import Principal
from serving.generation.request import PreparedPrompt
from serving.sessions.logged_generation import Admitted

CHAT, COMPLETION = "chat", "completion"  # the protocols whose replies are server-sent events here

_MOST_DIGITS = 12


def stream_routes(service: Service) -> list[Route]:
    async def read(request: Request) -> Response:
        admitted = await _find(service, request)
        return durable_stream(service, request, admitted, after=_after(request, admitted.stream_id))

    async def cancel(request: Request) -> Response:
        admitted = await _find(service, request)
        cancelled = await service.durable.cancel(admitted.stream_id)
        return JSONResponse({"id": admitted.stream_id, "object": "stream", "cancelled": cancelled})

    return [
        Route("/v1/streams/{stream_id}", read, methods=["GET"]),
        Route("/v1/streams/{stream_id}", cancel, methods=["DELETE"]),
        Route("/v1/streams/{stream_id}/cancel", cancel, methods=["POST"]),
    ]


async def start_durable(
    service: Service, request: Request, reply: ChatReply | CompletionReply, body: ChatBody | CompletionBody
) -> Response:
    """Begins a generation that outlives this connection, and gives its first reader, who may be told where it waits.
    Raises what DurableGenerations.start raises."""
    admitted = await begin_durable(service, request.state.caller, reply, body)
    generation = reply.generation
    assert isinstance(generation, Generation)
    return durable_stream(
        service,
        request,
        admitted,
        after=0,
        abandon=lambda: service.durable.abandon(admitted.stream_id),
        waiting=generation if is_wanted(request) else None,
    )


async def begin_durable(
    service: Service, caller: Caller, reply: ChatReply | CompletionReply, body: ChatBody | CompletionBody
) -> Admitted:
    """Raises what DurableGenerations.start raises."""
    generation = reply.generation
    assert isinstance(generation, Generation)

    def describe(prompts: tuple[PreparedPrompt, ...]) -> Admitted:
        return Admitted(
            stream_id=secrets.token_urlsafe(18),
            protocol=CHAT if isinstance(body, ChatBody) else COMPLETION,
            request_id=caller.request_id,
            body=msgspec.json.encode(body),
            created=reply.created,
            prompts=prompts,
            model=generation.service.card.name,
            named=generation.model,
            fallback=None if generation.fallback is None else generation.fallback.facts,
            owner=owner_of(caller.principal),
            principal=msgspec.msgpack.encode(caller.principal),
            grace_seconds=service.streams.grace_seconds,
        )

    return await service.durable.start(generation.events, describe)


def durable_stream(
    service: Service,
    request: Request,
    admitted: Admitted,
    *,
    after: int,
    abandon: Callable[[], None] = lambda: None,
    waiting: Generation | None = None,
) -> EventStream:
    """`waiting` is the generation, where it is made here and its place in the queue is to be told."""
    reply = followed_reply(service, admitted)
    request.state.generation = reply.generation
    position = StreamPosition(
        stream_id=admitted.stream_id,
        after=after,
        notice=lambda: service.durable.notice(admitted.stream_id),
        abandon=abandon,
    )
    broken = on_break(service, request)
    if waiting is None:
        return EventStream(reply.events(), service.streams, broken, position)
    return EventStream(reply.events(), with_notices(service.streams), broken, position, notice_of(waiting))


def on_break(service: Service, request: Request) -> Callable[[str], None]:
    """What is noted where a stream that had begun does not come to its end."""

    def note(code: str) -> None:
        request.state.break_code = code
        if code != LEFT:
            service.metrics.refuse(code)

    return note


def owner_of(principal: Principal) -> str:
    """Who may read what this caller begins. Where nobody has to say who they are, the stream's id is the secret."""
    return f"{len(principal.tenant)}:{principal.tenant}:{principal.key_id}"


async def _find(service: Service, request: Request) -> Admitted:
    return await service.durable.find(request.path_params["stream_id"], owner_of(request.state.caller.principal))


def _after(request: Request, stream_id: str) -> int:
    """The last event that the client has: `after`, else Last-Event-ID; with or without the stream's id."""
    given = request.query_params.get("after")
    param = "after"
    if given is None:
        given, param = request.headers.get("last-event-id", "0"), "Last-Event-ID"
    number = given.removeprefix(f"{stream_id}:")
    if not (number.isascii() and number.isdecimal() and len(number) <= _MOST_DIGITS):
        raise RequestError(f"{param} must be the id of one of this stream's events", param=param, code="invalid_value")
    return int(number)


def followed_reply(service: Service, admitted: Admitted) -> ChatReply | CompletionReply:
    """Raises NotFoundError for a stream of another protocol."""
    caller, source = Caller(request_id=admitted.request_id), FollowedGeneration(service, admitted)
    if admitted.protocol == CHAT:
        body = msgspec.json.decode(admitted.body, type=ChatBody)
        return ChatReply(service, body, caller, source=source, created=admitted.created)
    if admitted.protocol == COMPLETION:
        body = msgspec.json.decode(admitted.body, type=CompletionBody)
        return CompletionReply(service, body, caller, source=source, created=admitted.created)
    raise NotFoundError(
        "this stream was begun through another protocol, and is read there", param="stream_id", code="stream_not_found"
    )
