"""What the kernel tells of a connection (TCP_INFO), as Linux has it."""

import socket
import struct
from typing import Protocol

_TCP_INFO = getattr(socket, "TCP_INFO", None) if hasattr(socket, "SO_PEERCRED") else None


class HasOptions(Protocol):
    """A socket, or what an event loop shows of one."""

    @property
    def family(self) -> int: ...

    def getsockopt(self, level: int, option: int, size: int, /) -> bytes: ...


class KernelFact:
    """One number of TCP_INFO."""

    def __init__(self, offset: int) -> None:
        self._form = struct.Struct(f"{offset}xI")

    def of(self, connection: HasOptions) -> int | None:
        """None where it cannot be known: on a Unix socket, elsewhere than on Linux. Raises OSError."""
        if _TCP_INFO is None or connection.family not in (socket.AF_INET, socket.AF_INET6):
            return None
        return self._form.unpack(connection.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, self._form.size))[0]


UNACCEPTED = KernelFact(24)  # `tcpi_unacked`: of a socket that listens, connections that wait to be taken
SINCE_DATA = KernelFact(52)  # `tcpi_last_data_recv`: milliseconds since the newest data came, also before it was taken
