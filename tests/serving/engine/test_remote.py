"""The engine behind a real Unix socket: `remote.py` against `server.py`."""

import asyncio
import dataclasses
import os
import signal
import socket
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import numpy as np
import pytest

from serving.engine import wire
from serving.engine.client import Engine
from serving.engine.embedding import Embedder, EmbedRequest
from serving.engine.remote import RemoteEngine
from serving.engine.request import GenerateRequest, Priority, SamplingParams, TokenEvent
from serving.engine.resume import ResumingEngine
from serving.engine.server import EngineServer
from serving.errors import (
    ContextLengthError,
    EngineError,
    EngineUnavailableError,
    NotFoundError,
    OverloadedError,
    RequestError,
    SetupError,
    UnsupportedError,
    WeftError,
)
from tests.fakes.embedder import CountingEmbedder
from tests.fakes.mortal_engine import MortalEngine

PATIENCE = 180.0  # seconds; only a broken test waits that long


def request(request_id: str = "r", max_tokens: int = 8, seed: int = 0) -> GenerateRequest:
    sampling = SamplingParams(
        max_tokens=max_tokens,
        seed=seed,
        logit_bias=((3, -1.5),),
        bad_words=((1, 2), (3,)),
        logprobs=0,
        prompt_logprobs=0,
    )
    return GenerateRequest(
        request_id=request_id,
        prompt_token_ids=(1, 2, 3),
        sampling=sampling,
        priority=Priority.BATCH,
        tenant="archive",
        tenant_weight=2.5,
        deadline_seconds=60.0,
    )


async def read(engine: Engine, wanted: GenerateRequest) -> list[TokenEvent]:
    async with asyncio.timeout(PATIENCE):
        return [event async for event in engine.generate(wanted)]


async def opened(inner: MortalEngine, count: int) -> None:
    """Returns when the engine has `count` open streams."""
    async with asyncio.timeout(PATIENCE):
        while len(inner.open) != count:
            await inner.changed.wait()
            inner.changed.clear()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "private" / "engine.sock"


@asynccontextmanager
async def serving(engine: Engine, path: Path, embedder: Embedder | None = None) -> AsyncIterator[RemoteEngine]:
    server = EngineServer(engine, path, embedder=embedder)
    await server.start()
    client = RemoteEngine(path)
    try:
        yield client
    finally:
        await client.close()
        await server.stop()


async def test_a_stream_is_the_same_over_the_socket(path: Path) -> None:
    inner = MortalEngine()
    async with serving(inner, path) as client:
        events = await read(client, request())
        assert inner.requests == [request()]
        assert await client.info() == await inner.info()
        assert await client.stats() == await inner.stats()
    assert events == await read(MortalEngine(), request())


async def test_many_streams_share_one_session(path: Path) -> None:
    inner = MortalEngine()
    wanted = [request(f"r{i}", max_tokens=5 + i % 7, seed=i) for i in range(64)]
    async with serving(inner, path) as client:
        results = await asyncio.gather(*(read(client, r) for r in wanted))
    for wish, events in zip(wanted, results, strict=True):
        assert events == await read(MortalEngine(), wish)


async def test_closing_the_iterator_early_aborts_the_stream(path: Path) -> None:
    inner = MortalEngine(pause=asyncio.Event())
    async with serving(inner, path) as client:
        reading = asyncio.create_task(read(client, request()))
        await opened(inner, 1)
        reading.cancel()
        await opened(inner, 0)
        inner.pause = None
        assert len(await read(client, request("next"))) == 8


@dataclasses.dataclass
class Refusing(MortalEngine):
    error: Exception = dataclasses.field(default_factory=lambda: RequestError("?"))

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenEvent, None]:
        raise self.error
        yield  # pyright: ignore[reportUnreachable]


@pytest.mark.parametrize(
    "error",
    [
        RequestError("bad", param="seed", code="invalid_value"),
        UnsupportedError("not here", param="n"),
        ContextLengthError("too long", param="messages"),
        NotFoundError("no model", param="model", code="model_not_found"),
        OverloadedError("full", retry_after=2.5),
        EngineUnavailableError("starting", code="engine_unavailable"),
        EngineError("failed"),
    ],
)
async def test_errors_cross_with_class_message_param_and_code(path: Path, error: WeftError) -> None:
    async with serving(Refusing(error=error), path) as client:
        with pytest.raises(type(error)) as caught:
            await read(client, request())
    assert type(caught.value) is type(error)
    assert vars(caught.value) == vars(error)


async def test_a_bug_in_one_stream_is_an_engine_error_for_that_stream_alone(path: Path) -> None:
    class Buggy(MortalEngine):
        async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenEvent, None]:
            if request.request_id == "bad":
                raise ZeroDivisionError
            async for event in super().generate(request):
                yield event

    async with serving(Buggy(), path) as client:
        good, bad = await asyncio.gather(
            read(client, request("good")), read(client, request("bad")), return_exceptions=True
        )
    assert isinstance(bad, EngineError)
    assert not isinstance(good, BaseException)
    assert len(good) == 8


async def test_a_value_that_cannot_be_sent_fails_its_own_request_only(path: Path) -> None:
    async with serving(MortalEngine(), path) as client:
        with pytest.raises(RequestError, match="cannot be sent"):
            await read(client, dataclasses.replace(request(), cache_salt="\ud800"))
        with pytest.raises(RequestError, match="malformed request"):
            await read(client, dataclasses.replace(request(), prompt_token_ids=("x",)))  # pyright: ignore
        assert len(await read(client, request())) == 8


async def test_a_request_id_in_use_is_refused(path: Path) -> None:
    inner = MortalEngine(pause=asyncio.Event())
    async with serving(inner, path) as client:
        first = asyncio.create_task(read(client, request()))
        await opened(inner, 1)
        with pytest.raises(RequestError, match="in use"):
            await read(client, request())
        assert inner.pause is not None
        inner.pause.set()
        assert len(await first) == 8


async def test_nobody_at_the_socket_is_engine_unavailable(path: Path) -> None:
    client = RemoteEngine(path)
    with pytest.raises(EngineUnavailableError):
        await read(client, request())
    with pytest.raises(EngineUnavailableError):
        await client.info()
    with pytest.raises(EngineUnavailableError):
        await client.stats()
    await client.close()


async def test_an_engine_that_has_just_come_up_is_not_told_to_be_away(path: Path) -> None:
    client = RemoteEngine(path)
    for _ in range(3):  # each attempt lets the next one wait longer
        with pytest.raises(EngineUnavailableError):
            await client.stats()
    server = EngineServer(MortalEngine(), path)
    await server.start()
    assert (await client.stats()).ready
    events = await read(client, request())
    assert events[-1].finish_reason is not None
    await client.close()
    await server.stop()


async def test_a_lost_session_fails_every_open_stream(path: Path) -> None:
    inner = MortalEngine(pause=asyncio.Event())
    server = EngineServer(inner, path)
    await server.start()
    client = RemoteEngine(path)
    streams = [asyncio.create_task(read(client, request(f"r{i}"))) for i in range(8)]
    await opened(inner, 8)
    await server.stop()
    results = await asyncio.gather(*streams, return_exceptions=True)
    await opened(inner, 0)
    assert [type(r) for r in results] == [EngineUnavailableError] * 8
    assert {r.code for r in results if isinstance(r, EngineUnavailableError)} == {"engine_lost"}
    await client.close()


async def test_a_client_that_goes_away_leaves_no_stream_behind(path: Path) -> None:
    inner = MortalEngine(pause=asyncio.Event())
    async with serving(inner, path) as client:
        streams = [asyncio.create_task(read(client, request(f"r{i}"))) for i in range(4)]
        await opened(inner, 4)
        await client.close()
        await opened(inner, 0)
        results = await asyncio.gather(*streams, return_exceptions=True)
    assert [type(r) for r in results] == [EngineUnavailableError] * 4


async def test_streams_survive_two_engines_in_sequence_on_one_path(path: Path) -> None:
    first = MortalEngine(pause=asyncio.Event())
    server = EngineServer(first, path)
    await server.start()
    client = ResumingEngine(RemoteEngine(path), jitter=lambda: 0.1)
    wanted = [request(f"r{i}", max_tokens=12, seed=i) for i in range(8)]
    streams = [asyncio.create_task(read(client, r)) for r in wanted]
    await opened(first, 8)
    assert first.pause is not None
    first.life = 30
    first.pause.set()
    async with asyncio.timeout(PATIENCE):
        while first.alive:
            await first.changed.wait()
            first.changed.clear()
    await server.stop()
    server = EngineServer(MortalEngine(), path)
    await server.start()
    for wish, events in zip(wanted, await asyncio.gather(*streams), strict=True):
        expected = await read(MortalEngine(), wish)
        assert [t for e in events for t in e.token_ids] == [t for e in expected for t in e.token_ids]
        assert events[-1].finish_reason == expected[-1].finish_reason
    await client.close()
    await server.stop()


async def test_a_caller_of_another_version_is_refused_clearly(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(MortalEngine(), path) as client:
        monkeypatch.setattr("serving.engine.remote._METADATA", ((wire.PROTOCOL_KEY, "0123"),))
        with pytest.raises(SetupError, match=r"speaks protocol .* and the caller 0123.*restart both"):
            await read(client, request())
        with pytest.raises(SetupError, match="different versions"):
            await client.info()


async def test_a_message_that_is_not_of_the_protocol_ends_that_session_only(path: Path) -> None:
    async with serving(MortalEngine(), path) as client:
        async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
            call = channel.stream_stream(f"/{wire.SERVICE}/{wire.SESSION}")(
                metadata=((wire.PROTOCOL_KEY, wire.PROTOCOL),)
            )
            await call.read()
            await call.write(b"\xff\xff")
            with pytest.raises(grpc.aio.AioRpcError, match="malformed message"):
                await call.read()
        assert len(await read(client, request())) == 8


STOPPED_SERVER = """
import asyncio, sys
from pathlib import Path
from serving.engine.server import EngineServer
from tests.fakes.mortal_engine import MortalEngine

async def main():
    engine = MortalEngine(pause=asyncio.Event())
    server = EngineServer(engine, Path(sys.argv[1]))
    await server.start()
    print("ready", flush=True)
    while not engine.open:
        await engine.changed.wait()
        engine.changed.clear()
    print("open", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.parametrize("way", [signal.SIGSTOP, signal.SIGKILL])
async def test_a_hung_or_killed_engine_process_fails_its_streams(path: Path, way: signal.Signals) -> None:
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", STOPPED_SERVER, str(path), stdout=asyncio.subprocess.PIPE
    )
    assert child.stdout is not None
    client = RemoteEngine(path, keepalive_seconds=0.2)
    try:
        assert await child.stdout.readline() == b"ready\n"
        reading = asyncio.create_task(read(client, request()))
        assert await child.stdout.readline() == b"open\n"
        os.kill(child.pid, way)
        with pytest.raises(EngineUnavailableError) as caught:
            await reading
        assert caught.value.code == "engine_lost"
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()
        await client.close()


async def test_the_socket_lies_in_a_directory_of_its_owner_alone(path: Path) -> None:
    async with serving(MortalEngine(), path):
        assert path.parent.stat().st_mode & 0o777 == 0o700


async def test_a_directory_open_to_others_is_refused(path: Path) -> None:
    path.parent.mkdir()
    path.parent.chmod(0o755)
    with pytest.raises(SetupError, match="mode 0700, not 0755"):
        await EngineServer(MortalEngine(), path).start()


async def test_a_linked_directory_is_refused(path: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    path.parent.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SetupError, match="symbolic link"):
        await EngineServer(MortalEngine(), path).start()


@pytest.mark.parametrize("kind", ["file", "link"])
async def test_anything_but_a_socket_at_the_path_is_refused_and_kept(path: Path, tmp_path: Path, kind: str) -> None:
    path.parent.mkdir(mode=0o700)
    if kind == "file":
        path.write_text("precious")
    else:
        path.symlink_to(tmp_path / "target")
    with pytest.raises(SetupError, match="is not a socket"):
        await EngineServer(MortalEngine(), path).start()
    assert os.path.lexists(path)


async def test_a_stale_socket_is_replaced(path: Path) -> None:
    path.parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    async with serving(MortalEngine(), path) as client:
        assert len(await read(client, request())) == 8


async def test_a_socket_that_a_live_engine_serves_is_refused(path: Path) -> None:
    async with serving(MortalEngine(), path) as client:
        with pytest.raises(SetupError, match="another engine process"):
            await EngineServer(MortalEngine(), path).start()
        assert len(await read(client, request())) == 8


async def test_a_path_too_long_for_a_socket_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="longer than"):
        await EngineServer(MortalEngine(), tmp_path / ("x" * 120) / "engine.sock").start()


async def test_texts_are_embedded_over_the_socket(path: Path) -> None:
    embedder = CountingEmbedder()
    wanted = EmbedRequest(request_id="e", texts=((1, 2, 3), (4,)))
    async with serving(MortalEngine(), path, embedder) as client:
        vectors = await client.embed(wanted)
    assert embedder.asked == [wanted]
    assert vectors.dtype == np.float32
    np.testing.assert_array_equal(vectors, await embedder.embed(wanted))


@pytest.mark.parametrize(
    "error",
    [ContextLengthError("input[0] has 300 tokens", param="input[0]"), OverloadedError("full", retry_after=3.0)],
)
async def test_what_the_encoder_refuses_is_refused_over_the_socket(path: Path, error: WeftError) -> None:
    wanted = EmbedRequest(request_id="e", texts=((1,),))
    async with serving(MortalEngine(), path, CountingEmbedder(error)) as client:
        with pytest.raises(type(error)) as refused:
            await client.embed(wanted)
    assert (refused.value.message, refused.value.param) == (error.message, error.param)
    async with serving(MortalEngine(), path) as client:
        with pytest.raises(UnsupportedError, match="no encoder"):
            await client.embed(wanted)


async def test_texts_that_are_given_up_are_given_up_over_the_socket(path: Path) -> None:
    embedder = CountingEmbedder(hangs=True)
    async with serving(MortalEngine(), path, embedder) as client:
        leaving = asyncio.create_task(client.embed(EmbedRequest(request_id="e", texts=((1,),))))
        async with asyncio.timeout(PATIENCE):
            await embedder.begun.wait()
            leaving.cancel()
            await embedder.given_up.wait()
        await asyncio.gather(leaving, return_exceptions=True)


async def test_a_lost_engine_ends_an_embedding_with_an_error(path: Path) -> None:
    embedder = CountingEmbedder(hangs=True)
    server = EngineServer(MortalEngine(), path, embedder=embedder)
    await server.start()
    client = RemoteEngine(path)
    waiting = asyncio.create_task(client.embed(EmbedRequest(request_id="e", texts=((1,),))))
    async with asyncio.timeout(PATIENCE):
        await embedder.begun.wait()
        await server.stop()
        with pytest.raises(EngineUnavailableError):
            await waiting
    await client.close()
