"""Every error that weft raises on purpose.

    WeftError
    |-- RequestError              400  the client sent something wrong; sending it again will not help
    |   |-- UnsupportedError      400  understood, but not offered here; never accepted and ignored
    |   |-- ContextLengthError    400  prompt and output do not fit the model's window
    |   |-- AuthenticationError   401  nobody is known by these credentials
    |   |-- ForbiddenError        403  known, but may not do this
    |   |-- NotFoundError         404  no such model or object
    |   |-- ConflictError         409  not while something else goes on with the same object
    |   |-- PayloadTooLargeError  413  the body is larger than the server reads
    |   |-- SlowWriterError       408  the client's request has not come in time
    |   `-- SlowReaderError       408  the client took nothing for so long that it was cut off
    |-- RateLimitedError          429  a limit of the client's own; retry after `retry_after` seconds
    |-- QuotaError                429  a tenant has as much here as it may; asking again will not help
    |-- OverloadedError           503  not accepted now: a queue is full, say; retry after `retry_after` seconds
    |-- EngineUnavailableError    503  the engine process is starting or restarting; retry
    |-- EngineError               500  the engine failed on this request; not the client's fault
    |   `-- InternalError         500  weft did: nobody foresaw it, and the log has its frames
    |-- StreamLogError            503  the durable log of streams is full or cannot be reached
    |-- ConversationStoreError    503  the store of conversations cannot be reached
    |-- StreamCancelledError      409  somebody asked for the end of this stream, or nobody read it
    `-- SetupError                     raised before serving: a person has to change something
        |-- ConfigError                a deployment, mesh or model file is wrong
        `-- CheckpointError            a checkpoint is incomplete, malformed, or of another shape

Each class names its HTTP status, its gRPC code, OpenAI's `type` word and whether a retry can help, so that no protocol
has a table of its own.
"""

from collections.abc import Mapping
from typing import ClassVar


class WeftError(Exception):
    """The root. `param` names the field, flag or key at fault; `code` is a stable machine-readable reason; `metadata`
    goes with the answer, as HTTP headers or as gRPC trailers (names in lower case, ASCII)."""

    http_status: ClassVar[int] = 500
    grpc_code: ClassVar[str] = "INTERNAL"
    kind: ClassVar[str] = "server_error"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
        self.metadata: Mapping[str, str] = {}


class RequestError(WeftError):
    http_status = 400
    grpc_code = "INVALID_ARGUMENT"
    kind = "invalid_request_error"

    def renamed(self, param: str) -> "RequestError":
        """The same of `param`, as the client called what has another name below."""
        return type(self)(self.message.replace(self.param or param, param), param=param, code=self.code)


class UnsupportedError(RequestError):
    grpc_code = "UNIMPLEMENTED"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = "unsupported") -> None:
        super().__init__(message, param=param, code=code)


class ContextLengthError(RequestError):
    grpc_code = "OUT_OF_RANGE"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = "context_length_exceeded") -> None:
        super().__init__(message, param=param, code=code)


class AuthenticationError(RequestError):
    """The message never repeats what was sent."""

    http_status = 401
    grpc_code = "UNAUTHENTICATED"
    kind = "authentication_error"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = "invalid_api_key") -> None:
        super().__init__(message, param=param, code=code)


class ForbiddenError(RequestError):
    http_status = 403
    grpc_code = "PERMISSION_DENIED"
    kind = "permission_error"

    def __init__(self, message: str, *, code: str, param: str | None = None) -> None:
        super().__init__(message, param=param, code=code)


class NotFoundError(RequestError):
    http_status = 404
    grpc_code = "NOT_FOUND"


class ConflictError(RequestError):
    http_status = 409
    grpc_code = "ABORTED"


class PayloadTooLargeError(RequestError):
    http_status = 413
    grpc_code = "RESOURCE_EXHAUSTED"


class SlowWriterError(RequestError):
    """Over HTTP the protocol itself says the same."""

    http_status = 408
    grpc_code = "DEADLINE_EXCEEDED"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = "request_timeout") -> None:
        super().__init__(message, param=param, code=code)


class SlowReaderError(RequestError):
    http_status = 408
    grpc_code = "ABORTED"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = "slow_reader") -> None:
        super().__init__(message, param=param, code=code)


class RateLimitedError(WeftError):
    """`code` names the limit: requests_per_minute, tokens_per_minute, concurrency, too_many_requests (of a socket)."""

    http_status = 429
    grpc_code = "RESOURCE_EXHAUSTED"
    kind = "rate_limit_error"
    retryable = True

    def __init__(self, message: str, *, retry_after: float, code: str) -> None:
        super().__init__(message, code=code)
        self.retry_after = retry_after


class QuotaError(WeftError):
    """`code` names what there is too much of. SDKs ask again after most answers of this status; these tell them not
    to."""

    http_status = 429
    grpc_code = "RESOURCE_EXHAUSTED"
    kind = "insufficient_quota"

    def __init__(self, message: str, *, code: str, limit: int, used: int, param: str | None = None) -> None:
        super().__init__(message, param=param, code=code)
        self.limit, self.used = limit, used
        self.metadata = {"x-should-retry": "false", "x-quota-limit": str(limit), "x-quota-used": str(used)}


class OverloadedError(WeftError):
    http_status = 503
    grpc_code = "UNAVAILABLE"
    kind = "overloaded_error"
    retryable = True

    def __init__(self, message: str, *, retry_after: float, code: str | None = "overloaded") -> None:
        super().__init__(message, code=code)
        self.retry_after = retry_after


class EngineUnavailableError(WeftError):
    http_status = 503
    grpc_code = "UNAVAILABLE"
    kind = "overloaded_error"
    retryable = True


class EngineError(WeftError):
    pass


class InternalError(EngineError):
    """What clients read of an exception that is none of these: nothing of its text."""

    def __init__(
        self,
        message: str = "the server failed on this request",
        *,
        param: str | None = None,
        code: str | None = "internal_error",
    ) -> None:
        super().__init__(message, param=param, code=code)


class StreamLogError(WeftError):
    """`code`: log_full, log_unavailable."""

    http_status = 503
    grpc_code = "UNAVAILABLE"
    kind = "overloaded_error"
    retryable = True


class ConversationStoreError(WeftError):
    http_status = 503
    grpc_code = "UNAVAILABLE"
    kind = "overloaded_error"
    retryable = True

    def __init__(self, message: str, *, param: str | None = None, code: str | None = "store_unavailable") -> None:
        super().__init__(message, param=param, code=code)


class StreamCancelledError(WeftError):
    """`code`: stream_cancelled, no_reader."""

    http_status = 409
    grpc_code = "CANCELLED"
    kind = "cancelled_error"


class SetupError(WeftError):
    grpc_code = "FAILED_PRECONDITION"


class ConfigError(SetupError):
    pass


class CheckpointError(SetupError):
    pass
