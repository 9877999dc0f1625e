"""An asynchronous client for services that call weft over gRPC. It imports neither JAX nor the server.

    from serving.client import Client

    async with Client("127.0.0.1:8001", api_key=key) as client:
        reply = await client.chat([{"role": "user", "content": "Hello"}], max_tokens=50, timeout=30)
        print(reply.text)
        async with client.stream("Once upon a time", max_tokens=50) as chunks:
            async for chunk in chunks:
                print(chunk.text, end="")

client       Client: generate, chat, stream, stream_chat, embed, models, tokenize, is_ready
parameters   what a generation may be asked for           replies    what comes back
errors       ClientError: what went wrong, and whether asking again can help
retry        when a call is made again                    schema     the messages, compiled from proto/
"""

from serving.client.client import Client
from serving.client.errors import (
    CallCancelled,
    ClientError,
    DeadlineExceeded,
    InvalidRequest,
    NotAllowed,
    RateLimited,
    ServerFailed,
    Unavailable,
)
from serving.client.parameters import Message, Parameters
from serving.client.replies import Choice, Chunk, Embeddings, Model, Reply, TokenLogprobs, ToolCall, Usage
from serving.client.retry import RetryPolicy
from serving.client.stream import Stream
from serving.client.transport import Tls

__all__ = [
    "CallCancelled",
    "Choice",
    "Chunk",
    "Client",
    "ClientError",
    "DeadlineExceeded",
    "Embeddings",
    "InvalidRequest",
    "Message",
    "Model",
    "NotAllowed",
    "Parameters",
    "RateLimited",
    "Reply",
    "RetryPolicy",
    "ServerFailed",
    "Stream",
    "Tls",
    "TokenLogprobs",
    "ToolCall",
    "Unavailable",
    "Usage",
]
