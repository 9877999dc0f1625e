"""Failures as gRPC has them: a code, a sentence, and google.rpc details for programs."""

from typing import NoReturn

import grpc
import grpc.aio
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2

from serving.api.error_reply import UNAVAILABLE_RETRY_SECONDS, error_code
from serving.errors import OverloadedError, RateLimitedError, RequestError, WeftError

DETAILS_KEY = "grpc-status-details-bin"
DOMAIN = "weft"  # whose reasons these are
_MOST_CHARS = 2048  # of a sentence: trailers are bounded


async def abort(context: grpc.aio.ServicerContext, error: WeftError) -> NoReturn:
    """Ends the call with the error. Raises what grpc.aio ends a handler with."""
    code = grpc.StatusCode[error.grpc_code]
    trailers = (*error.metadata.items(), (DETAILS_KEY, rich_status(error).SerializeToString()))
    await context.abort(code, error.message[:_MOST_CHARS], trailing_metadata=trailers)


def rich_status(error: WeftError) -> status_pb2.Status:
    status = status_pb2.Status(
        code=grpc.StatusCode[error.grpc_code].value[0],  # type: ignore[index] -- (number, name)
        message=error.message[:_MOST_CHARS],
    )
    metadata = {"type": error.kind} | ({"param": error.param} if error.param else {})
    status.details.add().Pack(error_details_pb2.ErrorInfo(reason=error_code(error), domain=DOMAIN, metadata=metadata))
    if isinstance(error, RequestError) and error.param:
        violation = error_details_pb2.BadRequest.FieldViolation(field=error.param, description=status.message)
        status.details.add().Pack(error_details_pb2.BadRequest(field_violations=[violation]))
    if error.retryable:
        known = isinstance(error, OverloadedError | RateLimitedError)
        seconds = error.retry_after if known else UNAVAILABLE_RETRY_SECONDS
        delay = Duration()
        delay.FromMilliseconds(int(seconds * 1000))
        status.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=delay))
    return status
