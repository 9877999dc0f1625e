"""The messages between the API process and the engine process, and how errors cross.

Internal to one version of weft: msgpack of the dataclasses in `request.py` and `client.py`, decoded by type. Both sides
name `PROTOCOL`, a digest of every message's schema, and refuse another one.
"""

import hashlib
import json

import msgspec

from serving import errors
from serving.engine.client import EngineInfo, EngineStats
from serving.engine.embedding import EmbedRequest
from serving.engine.operation import Operation, OperationReport
from serving.engine.request import GenerateRequest, TokenEvent
from serving.errors import EngineError, OverloadedError, QuotaError, RateLimitedError, RequestError, WeftError

SERVICE = "weft.Engine"
SESSION, INFO, STATS, EMBED, OPERATE = "Session", "Info", "Stats", "Embed", "Operate"
PROTOCOL_KEY = "weft-protocol"  # the metadata key of every call

_ERRORS: dict[str, type[WeftError]] = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, WeftError)
}


class Submit(msgspec.Struct, frozen=True, tag=True):
    """Client to server: starts a stream. The request is decoded on its own, so that a bad one fails alone."""

    request_id: str
    request: msgspec.Raw


class Abort(msgspec.Struct, frozen=True, tag=True):
    """Client to server: nobody reads this stream any more."""

    request_id: str


ClientMessage = Submit | Abort


class Failure(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """An exception on its way to the other process."""

    kind: str  # the class's name
    message: str
    param: str | None = None
    code: str | None = None
    retry_after: float | None = None
    quota: tuple[int, int] | None = None  # a QuotaError's limit, and what is used of it

    @classmethod
    def of(cls, error: WeftError) -> "Failure":
        retry_after = error.retry_after if isinstance(error, OverloadedError | RateLimitedError) else None
        quota = (error.limit, error.used) if isinstance(error, QuotaError) else None
        return cls(type(error).__name__, error.message, error.param, error.code, retry_after, quota)

    def error(self) -> WeftError:
        """The exception that `of` was given: same class, message, param and code. Of one that is not of
        `serving.errors`, the nearest that is."""
        kind = _ERRORS.get(self.kind, EngineError)
        if self.quota is not None:
            limit, used = self.quota
            return QuotaError(self.message, code=self.code or "", limit=limit, used=used, param=self.param)
        if self.retry_after is not None:
            if kind is RateLimitedError:
                return RateLimitedError(self.message, retry_after=self.retry_after, code=self.code or "")
            return OverloadedError(self.message, retry_after=self.retry_after, code=self.code)
        return kind(self.message, param=self.param, code=self.code)


class StreamFailure(msgspec.Struct, frozen=True):
    request_id: str
    failure: Failure


class Batch(msgspec.Struct, frozen=True, omit_defaults=True):
    """Server to client: what happened to all of this client's streams since the last message."""

    events: list[TokenEvent] = []
    failures: list[StreamFailure] = []  # these streams are over


class InfoReply(msgspec.Struct, frozen=True, tag=True):
    info: EngineInfo


class StatsReply(msgspec.Struct, frozen=True, tag=True):
    stats: EngineStats


class OperateReply(msgspec.Struct, frozen=True, tag=True):
    report: OperationReport


class EmbedReply(msgspec.Struct, frozen=True, tag=True):
    texts: int
    vectors: bytes  # float32, little endian, text by text


def _digest() -> str:
    kinds = (Submit, Abort, GenerateRequest, Batch, Failure, InfoReply, StatsReply, EmbedRequest, EmbedReply)
    schema = msgspec.json.schema_components((*kinds, Operation, OperateReply))
    return hashlib.sha256(json.dumps(schema, sort_keys=True).encode()).hexdigest()[:16]


PROTOCOL = _digest()

_encoder = msgspec.msgpack.Encoder()
encode = _encoder.encode
decode_client_message = msgspec.msgpack.Decoder(ClientMessage).decode
decode_request = msgspec.msgpack.Decoder(GenerateRequest).decode
decode_batch = msgspec.msgpack.Decoder(Batch).decode
decode_info = msgspec.msgpack.Decoder(InfoReply | Failure).decode
decode_stats = msgspec.msgpack.Decoder(StatsReply | Failure).decode
decode_embed = msgspec.msgpack.Decoder(EmbedRequest).decode
decode_operation = msgspec.msgpack.Decoder(Operation).decode
decode_operated = msgspec.msgpack.Decoder(OperateReply | Failure).decode
decode_embedded = msgspec.msgpack.Decoder(EmbedReply | Failure).decode


def encode_submit(request: GenerateRequest) -> bytes:
    """Raises RequestError where a value cannot be written, such as a lone surrogate in a string."""
    try:
        return encode(Submit(request.request_id, msgspec.Raw(encode(request))))
    except (UnicodeEncodeError, OverflowError, TypeError) as error:
        raise RequestError(f"the request cannot be sent to the engine: {error}", code="invalid_value") from error


# Pings find a peer that hangs, where a dead one closes the socket. gRPC's own threads answer them, so an engine that
# compiles for minutes is not taken for dead, while a stopped process is.
def channel_options(keepalive_seconds: float) -> list[tuple[str, int]]:
    milliseconds = int(keepalive_seconds * 1000)
    return [
        ("grpc.max_receive_message_length", -1),  # a long prompt with logprobs; both ends are ours
        ("grpc.max_send_message_length", -1),
        ("grpc.keepalive_time_ms", milliseconds),
        ("grpc.keepalive_timeout_ms", milliseconds),
        ("grpc.http2.ping_timeout_ms", milliseconds),  # what counts in recent versions
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),  # no limit
        ("grpc.http2.max_ping_strikes", 0),  # no limit
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 100),
    ]
