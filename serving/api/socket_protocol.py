"""uvicorn's WebSocket protocol, which lets what runs come to its end when the server stops, and says whose certificate
the client has shown."""

import asyncio
import logging
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from serving.api.sse import ABORT_EXTENSION
from serving.api.tls import PEER_EXTENSION, common_name

DRAINING_EXTENSION = "weft.draining"  # in a scope's extensions: an event that is set when the server stops

logger = logging.getLogger(__name__)
logger.setLevel(logging.WARNING)  # uvicorn's own lines show paths, which may hold anything


class DrainingSocketProtocol(WebSocketsSansIOProtocol):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.logger = logger
        self._draining = asyncio.Event()

    async def run_asgi(self) -> None:
        extensions: dict[str, Any] = {
            ABORT_EXTENSION: self.transport.abort,
            DRAINING_EXTENSION: self._draining,
            PEER_EXTENSION: common_name(self.transport.get_extra_info("peercert")),
        }
        self.scope["extensions"].update(extensions)  # type: ignore[union-attr]
        await super().run_asgi()

    def shutdown(self) -> None:
        if self.handshake_complete and not self.close_sent:
            self._draining.set()
        else:
            super().shutdown()
