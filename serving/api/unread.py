"""How long a client's bytes lay in the kernel: what a busy process has not taken yet waits, and no clock of its own
sees that."""

import asyncio

from serving.api.kernel_facts import SINCE_DATA


def unread_seconds(transport: asyncio.BaseTransport) -> float:
    """Of what is being read just now; 0 where it cannot be known: on a Unix socket, elsewhere than on Linux."""
    connection = transport.get_extra_info("socket")
    if connection is None:
        return 0.0
    try:
        return (SINCE_DATA.of(connection) or 0) / 1000
    except OSError:  # the connection is gone already, and whoever reads from it will see that
        return 0.0
