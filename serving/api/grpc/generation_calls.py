"""The methods of `weft.v1.Generation`."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import Any, TypeVar, cast

import grpc
import grpc.aio

from serving.api.embedding import embedded
from serving.api.grpc.embed_messages import embed_reply, embed_request
from serving.api.grpc.front import Call, GrpcFront
from serving.api.grpc.reply import GrpcReply
from serving.api.grpc.request_table import (
    Asked,
    detokenize_body,
    generate_request,
    named_for_client,
    parsed,
    request_table,
    tokenize_body,
)
from serving.api.request_body import BODY_SECONDS, PARSED_IN_THREAD_ABOVE
from serving.api.service import Service
from serving.api.token_routes import decoded_tokens, encoded_prompt, windows_of
from serving.client import schema
from serving.errors import RequestError, SlowReaderError, SlowWriterError

T = TypeVar("T")
Context = grpc.aio.ServicerContext


class GenerationCalls:
    def __init__(self, service: Service, front: GrpcFront) -> None:
        self._service = service
        self._front = front

    def handler(self) -> grpc.GenericRpcHandler:
        """Requests are read by the methods themselves, so that one which never arrives is waited for within bounds, and
        one that is no such message is answered with a status that says so."""
        whole, stream = grpc.stream_unary_rpc_method_handler, grpc.stream_stream_rpc_method_handler
        methods: dict[str, Any] = {
            "Generate": whole(cast(Any, self._generate)),
            "Stream": stream(cast(Any, self._stream)),
            "ListModels": whole(cast(Any, self._list_models)),
            "Tokenize": whole(cast(Any, self._tokenize)),
            "Detokenize": whole(cast(Any, self._detokenize)),
            "Embed": whole(cast(Any, self._embed)),
        }
        return grpc.method_handlers_generic_handler(schema.SERVICE, methods)

    async def _generate(self, _: object, context: Context) -> bytes:
        async with self._front.call(context, "Generate") as call:
            asked = await _asked(context, stream=False)
            with named_for_client(asked.names):
                return (await self._reply(call, asked).whole()).SerializeToString()

    async def _stream(self, _: object, context: Context) -> None:
        async with self._front.call(context, "Stream") as call:
            asked = await _asked(context, stream=True)
            with named_for_client(asked.names):
                async with aclosing(self._reply(call, asked).chunks()) as chunks:
                    async for chunk in chunks:
                        await self._write(context, chunk.SerializeToString())

    async def _list_models(self, _: object, context: Context) -> bytes:
        async with self._front.call(context, "ListModels"):
            await _typed(context, lambda data: request_table(parsed(schema.ListModelsRequest, data)))
            card = self._service.card
            windows = {**windows_of(self._service)}
            adapters = () if self._service.adapters is None else await self._service.adapters.all()
            windows |= dict.fromkeys(adapters, card.max_model_len)
            facts = {"created": card.created, "owned_by": card.owned_by}
            models = [{"id": name, "max_model_len": window, **facts} for name, window in windows.items()]
            return schema.ListModelsReply(models=models).SerializeToString()

    async def _tokenize(self, _: object, context: Context) -> bytes:
        async with self._front.call(context, "Tokenize") as call:
            body = await _typed(context, tokenize_body)
            service = self._service.of(body.model)
            tokens = await encoded_prompt(service, body, call.caller.request_id)
            window = service.card.max_model_len
            return schema.TokenizeReply(tokens=tokens, max_model_len=window).SerializeToString()

    async def _detokenize(self, _: object, context: Context) -> bytes:
        async with self._front.call(context, "Detokenize"):
            body = await _typed(context, detokenize_body)
            return schema.DetokenizeReply(prompt=decoded_tokens(self._service, body)).SerializeToString()

    async def _embed(self, _: object, context: Context) -> bytes:
        async with self._front.call(context, "Embed") as call:
            asked = await _typed(context, embed_request)
            with named_for_client(asked.names):
                made = await embedded(self._service, asked.body, call.caller)
            return await asyncio.to_thread(embed_reply, made)

    def _reply(self, call: Call, asked: Asked) -> GrpcReply:
        reply = GrpcReply(self._service, asked.body, call.caller)
        call.generation = reply.generation
        return reply

    async def _write(self, context: Context, data: bytes) -> None:
        """Waits for a reader who is behind, and not for ever. Raises SlowReaderError."""
        patience = self._service.streams.slow_reader_seconds
        try:
            async with asyncio.timeout(patience):
                await context.write(data)
        except TimeoutError:
            raise SlowReaderError(f"nothing was read for {patience:g} seconds") from None


async def _asked(context: Context, *, stream: bool) -> Asked:
    """Raises RequestError."""
    left = context.time_remaining()
    return await _typed(context, lambda data: generate_request(data, stream=stream, seconds_left=left))


async def _typed(context: Context, read: Callable[[bytes], T]) -> T:
    """The call's one request. Raises RequestError."""
    try:
        async with asyncio.timeout(BODY_SECONDS):
            data = await context.read()
    except TimeoutError:
        raise SlowWriterError(f"the request did not arrive within {BODY_SECONDS:g} seconds") from None
    if not isinstance(data, bytes):  # the end of the client's side
        raise RequestError("a request is required", param="the message", code="missing_required_parameter")
    if len(data) > PARSED_IN_THREAD_ABOVE:
        return await asyncio.to_thread(read, data)
    return read(data)
