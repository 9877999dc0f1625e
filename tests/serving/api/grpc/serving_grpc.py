"""The gRPC service on a real port of this machine, in the test's own event loop."""

import contextlib
from collections.abc import AsyncIterator

import grpc
import grpc.aio
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from serving.api.grpc.server import GrpcServer
from serving.api.request_body import body_bytes_for
from serving.client import schema
from tests.serving.api.conftest import WINDOW, Api

USER = 3


@contextlib.asynccontextmanager
async def serving_grpc(api: Api, *, patience: float = 0.0) -> AsyncIterator[str]:
    """The address."""
    server = GrpcServer(api.service, "127.0.0.1", 0, body_bytes_for(WINDOW))
    await server.start()
    try:
        yield f"127.0.0.1:{server.port}"
    finally:
        await server.stop(patience)


@contextlib.asynccontextmanager
async def channel_to(api: Api, *options: tuple[str, int]) -> AsyncIterator[grpc.aio.Channel]:
    async with serving_grpc(api) as address, grpc.aio.insecure_channel(address, options) as channel:
        yield channel


def unary(channel: grpc.aio.Channel, name: str, reply: type[Message]):
    return channel.unary_unary(schema.method(name), _encode, reply.FromString)


def streaming(channel: grpc.aio.Channel):
    return channel.unary_stream(schema.method("Stream"), _encode, schema.GenerateChunk.FromString)


def details_of(error: grpc.aio.AioRpcError) -> dict[str, Message]:
    """The google.rpc details, by the names of their kinds."""
    found = dict(error.trailing_metadata() or ())
    status = status_pb2.Status.FromString(found["grpc-status-details-bin"])
    assert status.message == error.details()
    assert status.code == error.code().value[0]
    details = {}
    for packed in status.details:
        name = packed.type_url.rpartition(".")[2]
        details[name] = getattr(error_details_pb2, name).FromString(packed.value)
    return details


def chat(text: str = "hi", **fields):
    return schema.GenerateRequest(messages={"messages": [{"role": USER, "content": text}]}, **fields)


def _encode(message: Message | bytes) -> bytes:
    return message if isinstance(message, bytes) else message.SerializeToString()
