"""A conversation's pages, kept in the engine's cache while a tool runs."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

from serving.api.caller import Caller
from serving.api.service import Service
from serving.engine.pin_messages import PinPrefix, UnpinPrefix
from serving.errors import WeftError
from serving.gateway.lease import salt_of
from serving.generation.request import TextRequest

_MOMENT = 0.2  # seconds; a tool that ends before needs nothing kept
_MOST = 64  # of one tenant at once
_log = logging.getLogger(__name__)


class TurnPages:
    """For one request. Pins are the server's own here: a tenant's `/v1/prefixes` neither shows nor counts them. Where
    the engine refuses one, as it does when pins have their share of the pages, the tool runs without it."""

    def __init__(self, service: Service, caller: Caller) -> None:
        self._service = service
        self._tenant = caller.principal.tenant

    @asynccontextmanager
    async def __call__(self, request: TextRequest, seconds: float) -> AsyncGenerator[None, None]:
        """`request` renders to the prefix. It is let go at the end, and after `seconds` should this process die."""
        name, owner = f"turn-{request.request_id}", f"turns of {self._tenant}"
        begun = asyncio.Event()
        pinning = asyncio.create_task(self._pin(request, name, owner, seconds, begun))
        try:
            yield
        finally:
            pinning.cancel()
            await asyncio.gather(pinning, return_exceptions=True)
            if begun.is_set():
                with suppress(WeftError):  # it was refused, or has expired, or the engine with its pins is gone
                    await self._service.engine.operate(UnpinPrefix(name=name, owner=owner))

    async def _pin(self, request: TextRequest, name: str, owner: str, seconds: float, begun: asyncio.Event) -> None:
        await asyncio.sleep(_MOMENT)
        generator = self._service.generator
        salt = salt_of(self._tenant, request.cache_salt)
        try:
            text = await generator.render_chat(request)
            tokens = tuple(await generator.tokenize(text, add_special_tokens=False, param="messages"))
            begun.set()
            await self._service.engine.operate(
                PinPrefix(name=name, owner=owner, token_ids=tokens, salt=salt, seconds=seconds, most=_MOST)
            )
        except WeftError as error:
            _log.debug("the pages of %s are not kept while its tools run: %s", request.request_id, error.message)
