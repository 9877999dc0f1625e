"""POST /v1/chat/completions and /v1/completions."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from serving.api.chat_body import ChatBody
from serving.api.chat_reply import ChatReply
from serving.api.completion_body import CompletionBody
from serving.api.completion_reply import CompletionReply
from serving.api.connection import while_connected
from serving.api.generating_body import read_generating
from serving.api.generation import Generation
from serving.api.queue_notice import is_wanted, notice_of, with_notices
from serving.api.sampling_body import SamplingBody
from serving.api.service import Service
from serving.api.sse import EventStream
from serving.api.stream_routes import on_break, start_durable


def text_routes(service: Service, max_body_bytes: int) -> list[Route]:
    async def chat(request: Request) -> Response:
        body = await read_generating(request, ChatBody, max_body_bytes, service)
        _check(service, body)
        reply = ChatReply(service, body, request.state.caller)
        return await _answer(service, request, reply, body)

    async def completions(request: Request) -> Response:
        body = await read_generating(request, CompletionBody, max_body_bytes, service)
        _check(service, body)
        reply = CompletionReply(service, body, request.state.caller)
        return await _answer(service, request, reply, body)

    return [
        Route("/v1/chat/completions", chat, methods=["POST"]),
        Route("/v1/completions", completions, methods=["POST"]),
    ]


def _check(service: Service, body: SamplingBody) -> None:
    service.check_served(body.model)
    body.check_together()


async def _answer(
    service: Service, request: Request, reply: ChatReply | CompletionReply, body: ChatBody | CompletionBody
) -> Response:
    request.state.generation = reply.generation
    if body.durable:
        return await start_durable(service, request, reply, body)
    if body.stream:
        generation, broken = reply.generation, on_break(service, request)
        if isinstance(generation, Generation) and is_wanted(request):
            limits = with_notices(service.streams)
            return EventStream(reply.events(), limits, broken, heartbeat=notice_of(generation))
        return EventStream(reply.events(), service.streams, broken)
    whole = await while_connected(request.receive, reply.whole())
    return Response(whole, media_type="application/json")
