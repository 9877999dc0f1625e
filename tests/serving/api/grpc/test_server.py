"""The gRPC listener: who may call, what it tells of itself, and how it ends."""

import asyncio
import subprocess
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from serving.access import AccessConfig, AuthConfig
from serving.api.grpc.health import Health
from serving.api.grpc.server import GrpcServer
from serving.api.health import ask_engine
from serving.client import Client, InvalidRequest, NotAllowed, Tls, Unavailable, schema
from serving.engine.client import EngineStats
from serving.errors import EngineUnavailableError, SetupError
from serving.gateway.gateway import Gateway
from serving.settings.server import TlsConfig
from tests.fakes.engine import ScriptedEngine
from tests.serving.api.conftest import ApiMaker
from tests.serving.api.grpc.serving_grpc import channel_to, chat, details_of, serving_grpc, streaming, unary
from tests.serving.api.grpc.test_generation_calls import gated

HEALTH: Any = health_pb2
SERVING, NOT_SERVING = HEALTH.HealthCheckResponse.SERVING, HEALTH.HealthCheckResponse.NOT_SERVING


class FickleEngine(ScriptedEngine):
    """As ready as the test says; None is away."""

    is_ready: bool | None = True

    async def stats(self) -> EngineStats:
        if self.is_ready is None:
            raise EngineUnavailableError("away")
        stats = await super().stats()
        return EngineStats(**{**{name: getattr(stats, name) for name in stats.__slots__}, "ready": self.is_ready})


def check(channel: grpc.aio.Channel, name: str = "") -> Any:
    call = channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        HEALTH.HealthCheckRequest.SerializeToString,
        HEALTH.HealthCheckResponse.FromString,
    )
    return call(HEALTH.HealthCheckRequest(service=name))


async def test_health_is_what_the_engine_says_each_time(make_api: ApiMaker) -> None:
    engine = FickleEngine()
    async with channel_to(make_api(make_api.says("x"), health=engine)) as channel:
        for ready in (True, False, None, True):
            engine.is_ready = ready
            expected = SERVING if ready else NOT_SERVING
            assert [(await check(channel, name)).status for name in ("", schema.SERVICE)] == [expected] * 2
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await check(channel, "other")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_who_watches_health_hears_of_each_change_and_of_the_end(make_api: ApiMaker) -> None:
    engine = FickleEngine()
    api = make_api(make_api.says("x"), health=engine)
    async with channel_to(api) as channel:
        watch = channel.unary_stream(
            "/grpc.health.v1.Health/Watch",
            HEALTH.HealthCheckRequest.SerializeToString,
            HEALTH.HealthCheckResponse.FromString,
        )(HEALTH.HealthCheckRequest())
        assert (await watch.read()).status == SERVING
        engine.is_ready = None
        assert (await watch.read()).status == NOT_SERVING
        watch.cancel()
    health = Health(api.service)
    health.stop()
    engine.is_ready = True
    assert (await ask_engine(api.service)).ready
    assert (await health.Check(HEALTH.HealthCheckRequest(), None)).status == NOT_SERVING


async def test_every_method_but_health_asks_for_a_key(make_api: ApiMaker) -> None:
    api = make_api(make_api.says("x"), gateway=Gateway(AccessConfig(auth=AuthConfig(mode="required"))))
    async with serving_grpc(api) as address, grpc.aio.insecure_channel(address) as channel:
        assert (await check(channel)).status == SERVING
        for name in schema.SERVICE_METHODS:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await unary(channel, name, schema.GenerateReply)(b"")
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED, name
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await listed_services(channel)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        async with Client(address, api_key="wrong") as client:
            with pytest.raises(NotAllowed):
                await client.models()
    assert not api.engine.requests


@pytest.mark.parametrize(
    ("metadata", "code"),
    [
        ((("origin", "https://evil.example"),), "PERMISSION_DENIED"),
        ((("authorization", "Bearer a"), ("authorization", "Bearer b")), "INVALID_ARGUMENT"),
        ((("authorization", "Digest x"),), "UNAUTHENTICATED"),
    ],
)
async def test_pages_and_ambiguous_credentials_are_refused(
    make_api: ApiMaker, metadata: tuple[tuple[str, str], ...], code: str
) -> None:
    async with channel_to(make_api(make_api.says("x"))) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await unary(channel, "Generate", schema.GenerateReply)(chat(), metadata=metadata)
    assert caught.value.code().name == code
    assert details_of(caught.value)["ErrorInfo"].reason


async def listed_services(channel: grpc.aio.Channel) -> list[str]:
    messages: Any = reflection_pb2
    call = channel.stream_stream(
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        messages.ServerReflectionRequest.SerializeToString,
        messages.ServerReflectionResponse.FromString,
    )([messages.ServerReflectionRequest(list_services=""), messages.ServerReflectionRequest(file_by_filename="x")])
    names = [service.name for service in (await call.read()).list_services_response.service]
    call.cancel()
    return names


async def test_the_services_describe_themselves(make_api: ApiMaker) -> None:
    async with channel_to(make_api(make_api.says("x"))) as channel:
        assert {schema.SERVICE, "grpc.health.v1.Health"} <= set(await listed_services(channel))


async def test_a_server_that_stops_lets_calls_end_and_refuses_new_ones(make_api: ApiMaker) -> None:
    api, engine = gated(make_api, "hello")
    server = GrpcServer(api.service, "127.0.0.1", 0, 1 << 20)
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        stream = streaming(channel)(chat())
        engine.let(1)
        await stream.read()
        stopping = asyncio.ensure_future(server.stop(600))
        await asyncio.sleep(0)  # it begins
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await streaming(channel)(chat()).read()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert details_of(caught.value)["ErrorInfo"].reason == "server_stopping"
        assert (await check(channel)).status == NOT_SERVING
        engine.let(10)
        chunk = await stream.read()
        while not chunk.HasField("usage"):
            chunk = await stream.read()
        assert chunk.usage.completion_tokens == 6
        await stopping


async def test_a_call_that_outlasts_the_drain_is_told_to_ask_again(make_api: ApiMaker) -> None:
    api, engine = gated(make_api)
    server = GrpcServer(api.service, "127.0.0.1", 0, 1 << 20)
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        stream = streaming(channel)(chat())
        engine.let(1)
        await stream.read()
        stopping = asyncio.ensure_future(server.stop(0))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream.read()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert details_of(caught.value)["ErrorInfo"].reason == "server_stopping"
        await stopping
    assert len(engine.closed) == 1


async def test_a_port_that_is_taken_and_a_certificate_that_is_none_are_said_at_once(
    make_api: ApiMaker, tmp_path: Path
) -> None:
    api = make_api(make_api.says("x"))
    async with serving_grpc(api) as address:
        with pytest.raises(SetupError, match="cannot listen"):
            await GrpcServer(api.service, "127.0.0.1", int(address.rpartition(":")[2]), 1 << 20).start()
    tls = TlsConfig(certificate=tmp_path / "none.pem", key=tmp_path / "none.key")
    with pytest.raises(SetupError):
        await GrpcServer(api.service, "127.0.0.1", 0, 1 << 20, tls=tls).start()


async def test_with_tls_only_clients_that_trust_the_certificate_and_show_their_own_get_in(
    make_api: ApiMaker, tmp_path: Path
) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "1"]
    subprocess.run([*made, "-keyout", key, "-out", certificate, *subject], check=True, capture_output=True)
    api = make_api(make_api.says("hello"))
    tls = TlsConfig(certificate=certificate, key=key, client_authority=certificate)
    server = GrpcServer(api.service, "127.0.0.1", 0, 1 << 20, tls=tls)
    await server.start()
    address = f"localhost:{server.port}"
    async with Client(address, tls=Tls(authority=certificate, certificate=certificate, key=key)) as client:
        assert (await client.generate("hi", max_tokens=9)).text == "hello"
    for wrong in (Tls(authority=certificate), None):
        async with Client(address, tls=wrong) as client:
            with pytest.raises((Unavailable, InvalidRequest)):
                await client.generate("hi", timeout=60)
    await server.stop(0)


async def test_more_open_calls_than_there_is_room_for_are_refused_with_a_time(make_api: ApiMaker) -> None:
    api, engine = gated(make_api)
    server = GrpcServer(api.service, "127.0.0.1", 0, 1 << 20, most_calls=1)
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        running = asyncio.ensure_future(unary(channel, "Generate", schema.GenerateReply)(chat()))
        await engine.started.wait()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await unary(channel, "Generate", schema.GenerateReply)(chat())
        assert details_of(caught.value)["RetryInfo"].retry_delay.seconds == 1
        running.cancel()
    await server.stop(0)
