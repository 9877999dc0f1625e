"""What a call may fail with.

    ClientError
    |-- InvalidRequest     the request is wrong or asks for what is not offered: `param` says where
    |-- NotAllowed         no key, an unknown one, or one that may not do this
    |-- RateLimited        a limit of the key's tenant, or a message that is too large
    |-- Unavailable        nobody answers, the server is full, or it starts or stops
    |-- DeadlineExceeded   the timeout passed
    |-- CallCancelled      the call was ended before its end: by its caller, or since nobody read what it sent
    `-- ServerFailed       the server failed on this request

`retryable` says whether the same call may succeed later; `retry_after` when, in seconds, where the server knows.
"""

import grpc
import grpc.aio
from google.rpc import error_details_pb2, status_pb2

_DETAILS_KEY = "grpc-status-details-bin"


class ClientError(Exception):
    """`reason` is a stable word such as "context_length_exceeded"; `param` the field at fault."""

    def __init__(
        self,
        message: str,
        *,
        code: grpc.StatusCode,
        reason: str | None = None,
        param: str | None = None,
        retry_after: float | None = None,
        retryable: bool = False,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.reason = reason
        self.param = param
        self.retry_after = retry_after
        self.retryable = retryable


class InvalidRequest(ClientError):
    pass


class NotAllowed(ClientError):
    pass


class RateLimited(ClientError):
    pass


class Unavailable(ClientError):
    pass


class DeadlineExceeded(ClientError):
    pass


class CallCancelled(ClientError):
    pass


class ServerFailed(ClientError):
    pass


_KINDS: dict[grpc.StatusCode, type[ClientError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
    grpc.StatusCode.OUT_OF_RANGE: InvalidRequest,
    grpc.StatusCode.UNIMPLEMENTED: InvalidRequest,
    grpc.StatusCode.NOT_FOUND: InvalidRequest,
    grpc.StatusCode.UNAUTHENTICATED: NotAllowed,
    grpc.StatusCode.PERMISSION_DENIED: NotAllowed,
    grpc.StatusCode.RESOURCE_EXHAUSTED: RateLimited,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.CANCELLED: CallCancelled,
    grpc.StatusCode.ABORTED: CallCancelled,
}


def error_of(failure: grpc.aio.AioRpcError) -> ClientError:
    """The same failure with what its google.rpc details say."""
    code = failure.code()
    info, delay = error_details_pb2.ErrorInfo(), None
    for packed in _details(failure):
        if packed.Is(error_details_pb2.ErrorInfo.DESCRIPTOR):
            packed.Unpack(info)
        elif packed.Is(error_details_pb2.RetryInfo.DESCRIPTOR):
            retry = error_details_pb2.RetryInfo()
            packed.Unpack(retry)
            delay = retry.retry_delay.ToMilliseconds() / 1000
    return _KINDS.get(code, ServerFailed)(
        failure.details() or code.name,
        code=code,
        reason=info.reason or None,
        param=info.metadata.get("param"),
        retry_after=delay,
        # Without details nobody at the other end has spoken: the connection failed.
        retryable=delay is not None or (code is grpc.StatusCode.UNAVAILABLE and not info.reason),
    )


def _details(failure: grpc.aio.AioRpcError) -> list:
    for key, value in failure.trailing_metadata() or ():
        if key == _DETAILS_KEY and isinstance(value, bytes):
            return list(status_pb2.Status.FromString(value).details)
    return []
