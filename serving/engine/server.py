"""Serves any Engine to other processes of this machine, over gRPC on a Unix socket. The client is `remote.py`.

One bidirectional `Session` per client process carries all of its streams. What the engine's streams yield within one
turn of the event loop leaves as one message, so a step costs one write however many streams it advances.
"""

import asyncio
import logging
import os
import socket
import stat
from contextlib import aclosing
from pathlib import Path
from typing import Any, NoReturn, cast

import grpc
import grpc.aio
import msgspec

from serving.engine import wire
from serving.engine.client import Engine
from serving.engine.embedding import Embedder
from serving.engine.request import GenerateRequest, TokenEvent
from serving.errors import EngineError, RequestError, SetupError, UnsupportedError, WeftError
from serving.observability.logs import log_failure

log = logging.getLogger(__name__)

_MAX_SOCKET_PATH = 100  # bytes; the kernel takes 107, and gRPC some of them


class EngineServer:
    """Serves `engine` at `socket_path` from `start` to `stop`. Does not close the engine."""

    def __init__(
        self,
        engine: Engine,
        socket_path: Path,
        *,
        embedder: Embedder | None = None,
        model_embedder: Embedder | None = None,
        keepalive_seconds: float = 5.0,
    ) -> None:
        """`embedder` is the encoder's, `model_embedder` the served model's; None: such texts are refused."""
        self._engine = engine
        self._embedder = embedder
        self._model_embedder = model_embedder
        self._path = socket_path
        self._keepalive_seconds = keepalive_seconds
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        """Raises SetupError where the socket's place is not safe or is taken."""
        prepare_socket(self._path)
        server = grpc.aio.server(options=wire.channel_options(self._keepalive_seconds))
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(wire.SERVICE, self._methods()),))
        server.add_insecure_port(f"unix:{self._path}")
        await server.start()
        self._server = server

    async def stop(self) -> None:
        """Ends every session at once; their clients see the engine as lost, not their streams as ended."""
        if self._server is not None:
            await self._server.stop(grace=None)
            self._server = None
            self._path.unlink(missing_ok=True)

    def _methods(self) -> dict[str, Any]:
        return {
            wire.SESSION: grpc.stream_stream_rpc_method_handler(cast(Any, self._session)),
            wire.INFO: grpc.unary_unary_rpc_method_handler(cast(Any, self._info)),
            wire.STATS: grpc.unary_unary_rpc_method_handler(cast(Any, self._stats)),
            wire.OPERATE: grpc.unary_unary_rpc_method_handler(cast(Any, self._operate)),
            wire.EMBED: grpc.unary_unary_rpc_method_handler(cast(Any, self._embed)),
        }

    async def _session(self, _: object, context: grpc.aio.ServicerContext) -> None:
        await _check_protocol(context)
        await context.write(wire.encode(wire.Batch()))  # tells the client that the session stands
        await _Session(self._engine, context).run()

    async def _info(self, _: bytes, context: grpc.aio.ServicerContext) -> bytes:
        await _check_protocol(context)
        try:
            return wire.encode(wire.InfoReply(await self._engine.info()))
        except WeftError as error:
            return wire.encode(wire.Failure.of(error))

    async def _stats(self, _: bytes, context: grpc.aio.ServicerContext) -> bytes:
        await _check_protocol(context)
        try:
            return wire.encode(wire.StatsReply(await self._engine.stats()))
        except WeftError as error:
            return wire.encode(wire.Failure.of(error))

    async def _operate(self, message: bytes, context: grpc.aio.ServicerContext) -> bytes:
        await _check_protocol(context)
        try:
            return wire.encode(wire.OperateReply(await self._engine.operate(wire.decode_operation(message))))
        except WeftError as error:
            return wire.encode(wire.Failure.of(error))

    async def _embed(self, message: bytes, context: grpc.aio.ServicerContext) -> bytes:
        """Cancelled where the client leaves."""
        await _check_protocol(context)
        try:
            request = wire.decode_embed(message)
            embedder = self._model_embedder if request.model else self._embedder
            if embedder is None:
                what = "model that embeds" if request.model else "encoder"
                raise UnsupportedError(f"this engine has no {what}", param="model")
            vectors = await embedder.embed(request)
        except WeftError as error:
            return wire.encode(wire.Failure.of(error))
        return wire.encode(wire.EmbedReply(len(vectors), vectors.astype("<f4").tobytes()))


class _Session:
    """One client's streams."""

    def __init__(self, engine: Engine, context: grpc.aio.ServicerContext) -> None:
        self._engine = engine
        self._context = context
        self._streams: dict[str, asyncio.Task[None]] = {}
        self._events: list[TokenEvent] = []
        self._failures: list[wire.StreamFailure] = []
        self._pending = asyncio.Event()

    async def run(self) -> None:
        """Until the client closes its side, or the call is cancelled because the client is gone."""
        malformed: msgspec.DecodeError | None = None
        async with asyncio.TaskGroup() as group:
            writer = group.create_task(self._write())
            try:
                while (data := await self._context.read()) is not grpc.aio.EOF:  # pyright: ignore[reportAttributeAccessIssue]
                    self._receive(wire.decode_client_message(cast(bytes, data)), group)
            except msgspec.DecodeError as error:
                malformed = error
            finally:
                writer.cancel()
                for stream in self._streams.values():
                    stream.cancel()
        if malformed is not None:
            await self._context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"malformed message: {malformed}")

    def _receive(self, message: wire.ClientMessage, group: asyncio.TaskGroup) -> None:
        request_id = message.request_id
        if isinstance(message, wire.Abort):
            stream = self._streams.get(request_id)
            if stream is not None:
                stream.cancel()
            return
        try:
            request = wire.decode_request(message.request)
        except msgspec.ValidationError as error:
            self._fail(request_id, RequestError(f"malformed request: {error}", code="invalid_value"))
            return
        if request_id in self._streams:
            self._fail(request_id, RequestError(f"request_id {request_id!r} is in use", param="request_id"))
            return
        self._streams[request_id] = group.create_task(self._run_stream(request))

    async def _run_stream(self, request: GenerateRequest) -> None:
        try:
            async with aclosing(self._engine.generate(request)) as events:
                async for event in events:
                    self._events.append(event)
                    self._pending.set()
                    if event.finish_reason is not None:
                        return
            self._fail(request.request_id, EngineError("the engine ended the stream without a reason"))
        except WeftError as error:
            self._fail(request.request_id, error)
        except Exception as error:  # one stream's bug must not end the others
            log_failure(log, "a stream failed", error, request_id=request.request_id)
            self._fail(request.request_id, EngineError(f"the engine failed: {type(error).__name__}"))
        finally:
            del self._streams[request.request_id]

    def _fail(self, request_id: str, error: WeftError) -> None:
        self._failures.append(wire.StreamFailure(request_id, wire.Failure.of(error)))
        self._pending.set()

    async def _write(self) -> None:
        """While one message is on its way, the next one gathers."""
        while True:
            await self._pending.wait()
            self._pending.clear()
            batch = wire.Batch(self._events, self._failures)
            self._events, self._failures = [], []
            await self._context.write(wire.encode(batch))


async def _check_protocol(context: grpc.aio.ServicerContext) -> None:
    metadata = dict(context.invocation_metadata() or ())
    theirs = metadata.get(wire.PROTOCOL_KEY)
    if theirs != wire.PROTOCOL:
        await context.abort(
            grpc.StatusCode.FAILED_PRECONDITION,
            f"this engine process speaks protocol {wire.PROTOCOL} and the caller {theirs}: they are of different "
            "versions of weft; restart both",
        )


def prepare_socket(path: Path) -> None:
    """Makes `path` free for a socket in a directory that is ours alone (created with mode 0700 where missing).

    A socket that a dead process left is removed. Raises SetupError where the directory is a link, another user's or
    open to others, where something else than a socket lies at `path`, or where a live process serves there.
    """
    if len(os.fsencode(path)) > _MAX_SOCKET_PATH:
        _refuse(path, f"is longer than {_MAX_SOCKET_PATH} bytes; choose a shorter one")
    directory = path.parent
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    facts = directory.lstat()
    if not stat.S_ISDIR(facts.st_mode):
        _refuse(path, "must lie in a directory, not behind a symbolic link")
    if facts.st_uid != os.geteuid() or facts.st_mode & 0o077:
        _refuse(path, f"must lie in a directory of your own with mode 0700, not {stat.S_IMODE(facts.st_mode):04o}")
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        _refuse(path, "is not a socket; something else lies there")
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    _refuse(path, "is served by another engine process")


def _refuse(path: Path, reason: str) -> NoReturn:
    raise SetupError(f"the engine's socket {path} {reason}", param="socket")
