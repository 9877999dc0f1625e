"""How long a client's bytes lay in the kernel: what a busy process has not taken yet waits, and no clock of its own
sees that."""

import asyncio
import socket
import struct

# As Linux has it: milliseconds since the newest data came, also on a connection that was not accepted yet.
_TCP_INFO = getattr(socket, "TCP_INFO", None) if hasattr(socket, "SO_PEERCRED") else None
_SINCE_DATA = struct.Struct("52xI")


def unread_seconds(transport: asyncio.BaseTransport) -> float:
    """Of what is being read just now; 0 where it cannot be known: on a Unix socket, elsewhere than on Linux."""
    connection = transport.get_extra_info("socket")
    if _TCP_INFO is None or connection is None or connection.family not in (socket.AF_INET, socket.AF_INET6):
        return 0.0
    try:
        told = connection.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _SINCE_DATA.size)
    except OSError:  # the connection is gone already, and whoever reads from it will see that
        return 0.0
    return _SINCE_DATA.unpack(told)[0] / 1000
