"""POST /v1/messages and /v1/messages/count_tokens."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from serving.api.chat_reply import text_request
from serving.api.connection import while_connected
from serving.api.error_reply import error_object
from serving.api.generating_body import read_generating
from serving.api.messages.body import CountTokensBody, MessagesBody
from serving.api.messages.error_shape import anthropic_shape
from serving.api.messages.reply import MessagesReply, event_frame
from serving.api.request_body import read_typed
from serving.api.service import Service
from serving.api.sse import EventStream, Terminal
from serving.api.stream_routes import on_break
from serving.errors import WeftError

PING = event_frame({"type": "ping"})


def message_routes(service: Service, max_body_bytes: int) -> list[Route]:
    async def messages(request: Request) -> Response:
        body = await read_generating(request, MessagesBody, max_body_bytes, service)
        service.check_served(body.model)
        reply = MessagesReply(service, body, request.state.caller)
        request.state.generation = reply.generation
        if body.stream:
            terminal = Terminal(done=b"", failed=_failed)
            broken = on_break(service, request)
            return EventStream(reply.events(), service.streams, broken, heartbeat=lambda: PING, terminal=terminal)
        whole = await while_connected(request.receive, reply.whole())
        return Response(whole, media_type="application/json")

    async def count(request: Request) -> Response:
        body = await read_typed(request, CountTokensBody, max_body_bytes)
        tokens = await counted_tokens(service.of(body.model), body, request.state.request_id)
        return Response(msgspec.json.encode({"input_tokens": tokens}), media_type="application/json")

    return [
        Route("/v1/messages", messages, methods=["POST"]),
        Route("/v1/messages/count_tokens", count, methods=["POST"]),
    ]


async def counted_tokens(service: Service, body: CountTokensBody, request_id: str) -> int:
    """Those of the prompt that the same messages would make."""
    chat = body.chat()
    if chat.offered_tools is not None:
        service.check_tool_format()
    text = await service.generator.render_chat(text_request(chat, request_id))
    return len(await service.generator.tokenize(text, add_special_tokens=False, param="messages"))


def _failed(error: WeftError) -> bytes:
    return event_frame(error_object(error, anthropic_shape))
