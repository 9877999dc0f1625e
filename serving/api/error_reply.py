"""Every failure in OpenAI's shape: {"error": {"message", "type", "param", "code"}}, or in that of a path which has
another."""

import math
from collections.abc import Callable
from typing import Any, NoReturn

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from serving.errors import EngineUnavailableError, PayloadTooLargeError, RequestError, WeftError

UNAVAILABLE_RETRY_SECONDS = 5.0  # an engine restarts in seconds to minutes; asking this often is cheap

_HTTP_CODES = {
    400: "bad_request",
    403: "origin_not_allowed",
    404: "unknown_url",
    405: "method_not_allowed",
    408: "request_timeout",
    415: "unsupported_media_type",
    421: "host_not_allowed",
    426: "upgrade_required",
    431: "headers_too_large",
}
_HTTP_MESSAGES = {404: "there is nothing at this path", 405: "this path takes only the methods in the Allow header"}


ErrorShape = Callable[[dict[str, Any], int], dict[str, Any]]  # message, type, param and code; and the HTTP status


def openai_shape(facts: dict[str, Any], _: int) -> dict[str, Any]:
    return {"error": facts}


def error_object(error: WeftError, shape: ErrorShape = openai_shape) -> dict[str, Any]:
    facts = {"message": error.message, "type": error.kind, "param": error.param, "code": error_code(error)}
    return shape(facts, error.http_status)


def error_code(error: WeftError) -> str:
    """The error's own, else the commonest of its kind: never null, so that clients and metrics can tell them apart."""
    return error.code or ("invalid_value" if isinstance(error, RequestError) else error.kind)


def error_reply(error: WeftError, shape: ErrorShape = openai_shape) -> Response:
    headers = dict(error.metadata)
    if error.retryable:
        seconds = getattr(error, "retry_after", UNAVAILABLE_RETRY_SECONDS)
        headers["retry-after"] = str(max(1, math.ceil(seconds)))
    if isinstance(error, PayloadTooLargeError):
        headers["connection"] = "close"  # the rest of the body is not worth reading
    return _json(error_object(error, shape), error.http_status, headers)


def stopping() -> WeftError:
    """For a request that is cancelled from outside: only a server that stops does that."""
    return EngineUnavailableError("the server is stopping; ask again", code="server_stopping")


async def pass_on(_: Request, error: Exception) -> NoReturn:
    """An application's handler of HTTPException: to `Front`, which answers every failure in one shape; Starlette would
    answer this kind itself."""
    raise error


def http_error_reply(error: HTTPException, shape: ErrorShape = openai_shape) -> Response:
    """For what HTTP itself refuses: an unknown path, a wrong method or media type, a body that never ends."""
    facts = {
        "message": _HTTP_MESSAGES.get(error.status_code, error.detail),
        "type": "invalid_request_error",
        "param": None,
        "code": http_error_code(error),
    }
    return _json(shape(facts, error.status_code), error.status_code, dict(error.headers or {}))


def http_error_code(error: HTTPException) -> str:
    return _HTTP_CODES.get(error.status_code, "http_error")


def _json(body: dict[str, Any], status: int, headers: dict[str, str]) -> Response:
    return Response(msgspec.json.encode(body), status_code=status, media_type="application/json", headers=headers)
