"""Calls to a weft server over gRPC."""

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Unpack

from google.protobuf.message import Message as ProtoMessage
from grpc_health.v1 import health_pb2

from serving.client import schema
from serving.client.errors import Unavailable
from serving.client.parameters import Message, Parameters, chat_request, embed_request, prompt_request
from serving.client.replies import Embeddings, Model, Reply, embeddings_of, model_of, reply_of
from serving.client.retry import Deadline, RetryPolicy, attempted
from serving.client.stream import Stream
from serving.client.transport import Tls, open_channel

_HEALTH: Any = health_pb2
_ONCE = RetryPolicy(attempts=1)


class Client:
    """Make it inside a running event loop; one serves any number of calls at once, over one connection.

    Every call takes a `timeout` in seconds, over all its attempts: the server gives up with it. Cancelling the task
    that waits ends the generation. Every call raises ClientError.
    """

    def __init__(
        self, address: str, *, api_key: str | None = None, tls: Tls | None = None, retry: RetryPolicy | None = None
    ) -> None:
        """`address` is HOST:PORT. Without `tls` all of it, the key too, travels in the clear."""
        self._channel = open_channel(address, tls)
        self._metadata = () if api_key is None else (("authorization", f"Bearer {api_key}"),)
        self._retry = retry or RetryPolicy()

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Calls that are still running end with CallCancelled."""
        await self._channel.close()

    async def generate(
        self, prompt: str | Sequence[int], *, timeout: float | None = None, **parameters: Unpack[Parameters]
    ) -> Reply:
        """Continues a text, or token ids."""
        return await self._whole(prompt_request(prompt, parameters), timeout)

    async def chat(
        self, messages: Sequence[Message], *, timeout: float | None = None, **parameters: Unpack[Parameters]
    ) -> Reply:
        """Answers messages."""
        return await self._whole(chat_request(messages, parameters), timeout)

    def stream(
        self, prompt: str | Sequence[int], *, timeout: float | None = None, **parameters: Unpack[Parameters]
    ) -> Stream:
        """As `generate`, while it is made."""
        return self._stream(prompt_request(prompt, parameters), timeout)

    def stream_chat(
        self, messages: Sequence[Message], *, timeout: float | None = None, **parameters: Unpack[Parameters]
    ) -> Stream:
        """As `chat`, while it is made."""
        return self._stream(chat_request(messages, parameters), timeout)

    async def models(self, *, timeout: float | None = None) -> list[Model]:
        reply = await self._unary("ListModels", schema.ListModelsRequest(), schema.ListModelsReply, timeout)
        return list(map(model_of, reply.models))

    async def tokenize(
        self, prompt: str, *, add_special_tokens: bool | None = None, timeout: float | None = None
    ) -> list[int]:
        """The token ids of a text, as a generation from it would have them."""
        request = schema.TokenizeRequest(prompt=prompt, add_special_tokens=add_special_tokens)
        return list((await self._unary("Tokenize", request, schema.TokenizeReply, timeout)).tokens)

    async def detokenize(self, tokens: Sequence[int], *, timeout: float | None = None) -> str:
        request = schema.DetokenizeRequest(tokens=tokens)
        return (await self._unary("Detokenize", request, schema.DetokenizeReply, timeout)).prompt

    async def embed(
        self,
        texts: str | Sequence[str] | Sequence[Sequence[int]],
        *,
        model: str | None = None,
        dimensions: int | None = None,
        timeout: float | None = None,
    ) -> Embeddings:
        """A vector of each text; texts may be token ids, which are taken without the model's marks."""
        request = embed_request(texts, model, dimensions)
        return embeddings_of(await self._unary("Embed", request, schema.EmbedReply, timeout))

    async def is_ready(self, *, timeout: float | None = 5.0) -> bool:
        """Whether the server's engine takes requests. False where nobody answers."""
        call = self._channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=_HEALTH.HealthCheckRequest.SerializeToString,
            response_deserializer=_HEALTH.HealthCheckResponse.FromString,
        )
        request = _HEALTH.HealthCheckRequest(service=schema.SERVICE)

        async def check(left: float | None) -> Any:
            return await call(request, timeout=left)

        try:
            reply = await attempted(check, _ONCE, Deadline.after(timeout))
        except Unavailable:
            return False
        return reply.status == _HEALTH.HealthCheckResponse.SERVING

    async def _whole(self, request: Any, timeout: float | None) -> Reply:
        return reply_of(await self._unary("Generate", request, schema.GenerateReply, timeout))

    async def _unary(self, name: str, request: Any, reply: type[ProtoMessage], timeout: float | None) -> Any:
        call = self._channel.unary_unary(schema.method(name), _encode, reply.FromString)

        async def attempt(left: float | None) -> Any:
            return await call(request, timeout=left, metadata=self._metadata)

        return await attempted(attempt, self._retry, Deadline.after(timeout))

    def _stream(self, request: Any, timeout: float | None) -> Stream:
        call = self._channel.unary_stream(schema.method("Stream"), _encode, schema.GenerateChunk.FromString)
        return Stream(lambda left: call(request, timeout=left, metadata=self._metadata), self._retry, timeout)


def _encode(message: ProtoMessage) -> bytes:
    return message.SerializeToString()
