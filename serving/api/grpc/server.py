"""The gRPC listener, in the event loop of the API process."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_reflection.v1alpha._async import ReflectionServicer

from serving.api.certificate_files import CertificateFiles, Pair
from serving.api.grpc.front import MOST_CALLS, GrpcFront
from serving.api.grpc.generation_calls import GenerationCalls
from serving.api.grpc.health import Health
from serving.api.service import Service
from serving.client import schema
from serving.errors import SetupError
from serving.observability.logs import log_event
from serving.settings.server import TlsConfig

_REFLECTION = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"].full_name
_HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
_CUT_SECONDS = 2.0  # for statuses to leave, once the calls that were waited for are cut

logger = logging.getLogger(__name__)


class GuardedReflection(reflection_pb2_grpc.ServerReflectionServicer):
    """What the services are called and how their messages look, for those who may use them."""

    def __init__(self, front: GrpcFront) -> None:
        self._inner: Any = ReflectionServicer([schema.SERVICE, _HEALTH, _REFLECTION])
        self._front = front

    async def ServerReflectionInfo(self, request_iterator: Any, context: Any) -> AsyncIterator[Any]:
        async with self._front.call(context, "ServerReflectionInfo"):
            async for answer in self._inner.ServerReflectionInfo(request_iterator, context):
                yield answer


class GrpcServer:
    """Listens from `start` to `stop`. `max_message_bytes` bounds a request, as HTTP's largest body does."""

    def __init__(
        self,
        service: Service,
        host: str,
        port: int,
        max_message_bytes: int,
        *,
        tls: TlsConfig | None = None,
        most_calls: int = MOST_CALLS,
    ) -> None:
        self._service = service
        self._address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._max_message_bytes = max_message_bytes
        self._tls = tls
        self._front = GrpcFront(service, most_calls=most_calls)
        self._health = Health(service)
        self._server: grpc.aio.Server | None = None
        self.port = port  # with 0: the one that was found, from `start` on

    async def start(self) -> None:
        """Raises SetupError where the port cannot be had, or the certificate cannot be used."""
        server = grpc.aio.server(options=_options(self._max_message_bytes))
        server.add_generic_rpc_handlers((GenerationCalls(self._service, self._front).handler(),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(GuardedReflection(self._front), server)
        try:
            if self._tls is None:
                self.port = server.add_insecure_port(self._address)
            else:
                self.port = server.add_secure_port(self._address, _credentials(self._tls))
        except OSError as error:
            raise SetupError(f"server.tls cannot be read: {error}", param="tls") from error
        except RuntimeError as error:
            what = "taken or not this machine's" + (
                ", or server.tls is not a certificate with its key" * bool(self._tls)
            )
            raise SetupError(f"cannot listen on {self._address} for gRPC: it is {what}", param="grpc_port") from error
        await server.start()
        self._server = server
        log_event(logger, "listening", protocol="gRPC", port=self.port)

    async def stop(self, patience: float) -> None:
        """Refuses new calls, waits so many seconds for those that run, and ends the rest with a status."""
        if self._server is None:
            return
        self._health.stop()
        self._front.retire()
        try:
            async with asyncio.timeout(patience):
                await self._front.drained()
        except TimeoutError:
            self._front.cut()
        await self._server.stop(_CUT_SECONDS)


def _credentials(tls: TlsConfig) -> grpc.ServerCredentials:
    """Asked for the newest certificate at each handshake. Raises OSError."""
    authority = None if tls.client_authority is None else tls.client_authority.read_bytes()
    files = CertificateFiles(tls)

    def configured(pair: Pair) -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration([(pair.key, pair.certificate)], authority)

    def renewed() -> grpc.ServerCertificateConfiguration | None:
        pair = files.renewed()
        return None if pair is None else configured(pair)

    now = configured(Pair(tls.certificate.read_bytes(), tls.key.read_bytes()))
    fetch = cast(Callable[[], grpc.ServerCertificateConfiguration], renewed)  # the stubs forget that it may be None
    return grpc.dynamic_ssl_server_credentials(now, fetch, require_client_authentication=authority is not None)


def _options(max_message_bytes: int) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", -1),  # the logprobs of a long prompt; what is made is bounded by the window
        ("grpc.max_concurrent_streams", 256),  # of one connection
        ("grpc.max_metadata_size", 16 << 10),
        ("grpc.absolute_max_metadata_size", 32 << 10),
        ("grpc.server_handshake_timeout_ms", 10_000),  # for who connects and says nothing
        ("grpc.max_connection_idle_ms", 600_000),
        # A peer that vanished is found by pings, in 20 + 20 seconds.
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.http2.ping_timeout_ms", 20_000),
        ("grpc.keepalive_permit_without_calls", 1),
        # A client may ping every ten seconds; one that does so more often is disconnected.
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
        ("grpc.http2.max_ping_strikes", 2),
        ("grpc.so_reuseport", 0),  # a port that is taken is an error, not shared
        ("grpc.use_local_subchannel_pool", 1),
    ]
