"""The ports that a deployment listens on: one address has each of them once."""

from collections.abc import Sequence
from dataclasses import dataclass

from serving.errors import ConfigError
from serving.web_names import host_name, is_unspecified


@dataclass(frozen=True, slots=True)
class Listener:
    key: str  # that says its port
    host: str
    port: int | None  # None: it does not listen; 0: on any free port


def check_ports(listeners: Sequence[Listener], where: str) -> None:
    """Raises ConfigError."""
    fixed = [each for each in listeners if each.port]
    for number, one in enumerate(fixed):
        for other in fixed[:number]:
            if one.port == other.port and _is_shared(one.host, other.host):
                raise ConfigError(
                    f"{where}: {one.key} must be another port than {other.key}, which is {other.port} too",
                    param=one.key,
                )


def _is_shared(one: str, other: str) -> bool:
    """Whether who listens on the one address keeps others from the other's ports."""
    names = {("127.0.0.1" if name == "localhost" else name) for name in (host_name(one), host_name(other))}
    if len(names) == 1:
        return True
    is_mixed = len({":" in (name or "") for name in names}) > 1  # IPv4 and IPv6 have ports of their own
    return not is_mixed and (is_unspecified(one) or is_unspecified(other))
