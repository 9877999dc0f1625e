"""From a socket to a typed body, with a bound on everything: media type, coding, bytes, seconds."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import Request

from serving.api.strict_json import parse_object
from serving.api.typed_body import Body, typed
from serving.errors import PayloadTooLargeError

BODY_SECONDS = 60.0  # from the end of the headers to the end of the body
BYTES_PER_TOKEN = 32  # a token id takes 8 at most, English 5, escaped Chinese 12: the rest is for what is around them
LEAST_BODY_BYTES = 1 << 20  # a small window's prompts are small, but lists of them, and of tools, are not
PARSED_IN_THREAD_ABOVE = 16 << 10  # bytes; so many take a few milliseconds at worst

B = TypeVar("B", bound=Body)


async def read_typed(
    request: Request, kind: type[B], max_bytes: int, before: Callable[[bytes], None] | None = None
) -> B:
    """`before` is given the bytes before they are parsed. Raises HTTPException (408, 415), PayloadTooLargeError,
    RequestError, ClientDisconnect, or what `before` raises."""
    _check_headers(request)
    body = await _read(request, max_bytes)
    if before is not None:
        before(body)
    if len(body) > PARSED_IN_THREAD_ABOVE:
        return await asyncio.to_thread(_parsed, kind, body)
    return _parsed(kind, body)


def body_bytes_for(max_model_len: int) -> int:
    """The largest body for a model that reads so many tokens, where the deployment sets none."""
    return max(LEAST_BODY_BYTES, BYTES_PER_TOKEN * max_model_len)


def _parsed(kind: type[B], body: bytes) -> B:
    return typed(kind, parse_object(body))


def _check_headers(request: Request) -> None:
    """Demanding JSON by name also makes a browser ask first, before it sends that type for a foreign page."""
    media, _, rest = request.headers.get("content-type", "").partition(";")
    charset = rest.strip().lower().removeprefix("charset=").strip('"')
    if media.strip().lower() != "application/json" or charset not in ("", "utf-8"):
        raise HTTPException(415, "the body must have content-type application/json, in UTF-8")
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding != "identity":
        raise HTTPException(415, "the body must not be compressed; leave content-encoding out")


async def _read(request: Request, max_bytes: int) -> bytes:
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared[:20]) > max_bytes:
        raise _too_large(max_bytes)
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                size += len(part)
                if size > max_bytes:
                    raise _too_large(max_bytes)
                parts.append(part)
    except TimeoutError:
        raise HTTPException(
            408, f"the body did not arrive within {BODY_SECONDS:g} seconds", headers={"connection": "close"}
        ) from None
    return b"".join(parts)


def _too_large(max_bytes: int) -> PayloadTooLargeError:
    return PayloadTooLargeError(f"the body is larger than {max_bytes} bytes", code="payload_too_large")
