"""The connection under a client."""

from dataclasses import dataclass
from pathlib import Path

import grpc
import grpc.aio

# A server that vanished is found by pings; weft lets a client send one every ten seconds.
_OPTIONS = (
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.max_receive_message_length", -1),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """Files in PEM. None of them: the system's authorities are trusted, and no certificate is shown."""

    authority: Path | None = None  # who signed the server's certificate
    certificate: Path | None = None  # of the client, with its key
    key: Path | None = None


def open_channel(address: str, tls: Tls | None) -> grpc.aio.Channel:
    if tls is None:
        return grpc.aio.insecure_channel(address, _OPTIONS)
    credentials = grpc.ssl_channel_credentials(
        root_certificates=_read(tls.authority),
        private_key=_read(tls.key),
        certificate_chain=_read(tls.certificate),
    )
    return grpc.aio.secure_channel(address, credentials, _OPTIONS)


def _read(path: Path | None) -> bytes | None:
    return None if path is None else path.read_bytes()
