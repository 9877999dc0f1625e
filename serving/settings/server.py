"""What a deployment says of the socket that clients use (docs/operations.md)."""

from dataclasses import dataclass
from pathlib import Path

from serving.errors import ConfigError
from serving.web_names import ANY, host_name, is_loopback, origin_of

DRAIN_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    certificate: Path
    key: Path
    client_authority: Path | None = None  # certificates of clients must be signed by one of these


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    host: str = "127.0.0.1"
    port: int = 8000
    grpc_port: int | None = None  # on the same host; None: no gRPC
    allowed_hosts: tuple[str, ...] | None = None  # names that clients may use beside its own; "*": any
    allowed_origins: tuple[str, ...] = ()  # of pages that may call the API from a browser, beside its own
    max_body_bytes: int | None = None  # None: by the model's window
    max_streams: int = 512  # open generations per API process
    drain_seconds: float = DRAIN_SECONDS  # on SIGTERM, how long open streams may go on
    tls: TlsConfig | None = None  # None: plain HTTP


def check_server(server: ServerConfig, where: str) -> None:
    """Who may ask must be said before others than this machine can. Raises ConfigError."""
    if server.allowed_hosts is None and server.host and not is_loopback(server.host):
        raise ConfigError(
            f"{where}: server.allowed_hosts must be given where server.host is {server.host}, which other machines "
            'can reach: the names and addresses that clients use, such as ["gpu-box.lan", "192.168.1.5"], or ["*"]',
            param="allowed_hosts",
        )
    for name in server.allowed_hosts or ():
        if name != ANY and host_name(name) is None:
            raise ConfigError(
                f"{where}: server.allowed_hosts must be host names or addresses, without scheme and port, not {name!r}",
                param="allowed_hosts",
            )
    for origin in server.allowed_origins:
        if origin_of(origin) is None:
            raise ConfigError(
                f'{where}: server.allowed_origins must be origins such as "https://chat.example.com", each named: '
                f"scheme, host and port, without a path, not {origin!r}",
                param="allowed_origins",
            )
