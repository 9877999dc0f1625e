"""An answer that is read while it is made."""

from collections.abc import AsyncGenerator, Callable
from types import TracebackType
from typing import Any

import grpc
import grpc.aio

from serving.client.errors import error_of
from serving.client.replies import Chunk, chunk_of
from serving.client.retry import Deadline, RetryPolicy, attempted

Call = grpc.aio.UnaryStreamCall[Any, Any]


class Stream:
    """Iterate over it for Chunks; the last one has the usage. Leaving its block, or `cancel`, ends the generation.

    A failure before the first chunk may be tried again; one after it is raised, since a second answer would be another.
    """

    def __init__(self, start: Callable[[float | None], Call], policy: RetryPolicy, timeout: float | None) -> None:
        self._start = start
        self._policy = policy
        self._timeout = timeout
        self._call: Call | None = None

    async def __aenter__(self) -> "Stream":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.cancel()

    def __aiter__(self) -> AsyncGenerator[Chunk, None]:
        return self._chunks()

    def cancel(self) -> None:
        """The server stops generating. After the end it does nothing."""
        if self._call is not None:
            self._call.cancel()

    async def _chunks(self) -> AsyncGenerator[Chunk, None]:
        """Raises ClientError."""
        try:
            message = await attempted(self._first, self._policy, Deadline.after(self._timeout))
            call = self._call
            while call is not None and message is not grpc.aio.EOF:  # pyright: ignore[reportAttributeAccessIssue]
                yield chunk_of(message)
                message = await call.read()
        except grpc.aio.AioRpcError as failure:
            raise error_of(failure) from None
        finally:
            self.cancel()

    async def _first(self, seconds: float | None) -> Any:
        self._call = self._start(seconds)
        return await self._call.read()
