"""HTTP to a server of the Model Context Protocol, whose messages may have so many bytes each.

The protocol's client reads whatever comes, and what fails below it fails without a word to the call that waits. So a
message that is too large is not handed on: an error stands in its place, as the server could have sent it.
"""

import json
import logging
from collections.abc import AsyncIterator

import httpx

TOO_LARGE = -32050  # of the range that JSON-RPC leaves to implementations
_ENDS = (b"\n\n", b"\n\r\n", b"\r\r")  # of an event
_LONGEST_END = 3
_log = logging.getLogger(__name__)


class BoundedAnswers(httpx.AsyncBaseTransport):
    def __init__(self, transport: httpx.AsyncBaseTransport, max_bytes: int) -> None:
        self._transport = transport
        self._max_bytes = max_bytes

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Raises httpx.DecodingError for a compressed answer, which could grow beyond any bound."""
        request.headers["Accept-Encoding"] = "identity"
        response = await self._transport.handle_async_request(request)
        if response.headers.get("Content-Encoding", "identity") != "identity":
            await response.aclose()
            raise httpx.DecodingError("the answer is compressed, which was not asked for", request=request)
        assert isinstance(response.stream, httpx.AsyncByteStream)
        response.stream = _Bounded(
            response.stream,
            request,
            self._max_bytes,
            is_events=response.headers.get("Content-Type", "").lower().startswith("text/event-stream"),
        )
        return response

    async def aclose(self) -> None:
        await self._transport.aclose()


class _Bounded(httpx.AsyncByteStream):
    """Passes whole messages on: an event, or else all that there is."""

    def __init__(
        self, stream: httpx.AsyncByteStream, request: httpx.Request, max_bytes: int, *, is_events: bool
    ) -> None:
        self._stream = stream
        self._request = request
        self._max_bytes = max_bytes
        self._is_events = is_events

    async def __aiter__(self) -> AsyncIterator[bytes]:
        held = bytearray()
        async for chunk in self._stream:
            searched = max(0, len(held) + 1 - _LONGEST_END)
            held += chunk
            if self._is_events and (end := _end_of_events(held, searched)):
                yield bytes(held[:end])
                del held[:end]
            if len(held) > self._max_bytes:
                yield self._refusal()
                return
        yield bytes(held)

    async def aclose(self) -> None:
        await self._stream.aclose()

    def _refusal(self) -> bytes:
        """Raises httpx.ReadError where no call waits for this message."""
        message = f"a message has more than the {self._max_bytes} bytes that it may have (max_bytes)"
        request_id = _id_in(self._request.content)
        if request_id is None:
            _log.warning("%s: %s", self._request.url.host, message)
            raise httpx.ReadError(message, request=self._request)
        error = {"jsonrpc": "2.0", "id": request_id, "error": {"code": TOO_LARGE, "message": message}}
        text = json.dumps(error).encode()
        return b"event: message\ndata: " + text + b"\n\n" if self._is_events else text


def _end_of_events(held: bytearray, begin: int) -> int:
    """Where the last whole event ends, of those that end behind `begin`; 0: there is none."""
    return max((place + len(mark) for mark in _ENDS if (place := held.rfind(mark, begin)) >= 0), default=0)


def _id_in(content: bytes) -> int | str | None:
    """Of the JSON-RPC message that was sent; what only listens sends none."""
    return json.loads(content).get("id") if content else None
