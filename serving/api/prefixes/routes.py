"""Prefixes that stay in the cache for a time, such as a system prompt with its tools.

    POST   /v1/prefixes                  pins one
    GET    /v1/prefixes                  the tenant's own
    GET    /v1/prefixes/{prefix_id}
    DELETE /v1/prefixes/{prefix_id}      lets it go

The same prefix pinned again is the same one, for a new time. Pins live in the engine: a restart forgets them.
"""

import time
from hashlib import blake2b

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from serving.api.caller import tenant_of
from serving.api.prefixes.body import DEFAULT_TTL, PrefixBody
from serving.api.request_body import read_typed
from serving.api.service import Service
from serving.api.token_routes import encoded_prompt
from serving.engine.pin_messages import ListPins, PinPrefix, UnpinPrefix
from serving.engine.prefix_pins import PinnedPrefix
from serving.errors import NotFoundError, RequestError
from serving.gateway.lease import salt_of
from serving.settings.prefix_cache import PrefixCacheConfig

_ID_BYTES = 12


def prefix_routes(first: Service, limits: PrefixCacheConfig, max_body_bytes: int) -> list[Route]:
    async def pin(request: Request) -> Response:
        body = await read_typed(request, PrefixBody, max_body_bytes)
        service = first.of(body.model)
        body.check_together()
        ttl = min(DEFAULT_TTL, int(limits.pin_seconds)) if body.ttl is None else body.ttl
        if ttl > limits.pin_seconds:
            raise RequestError(
                f"ttl may be {limits.pin_seconds:g} seconds here, not {ttl}", param="ttl", code="invalid_value"
            )
        tokens = tuple(await encoded_prompt(service, body.to_encode(), request.state.request_id))
        window = (await service.engine.info()).max_model_len
        if len(tokens) > window:
            raise RequestError(
                f"the prefix has {len(tokens)} tokens, and no prompt may have more than {window}",
                param="prompt" if body.messages is None else "messages",
                code="context_length_exceeded",
            )
        tenant = tenant_of(request)
        salt = salt_of(tenant, body.cache_salt or "")
        name = _name(tokens, salt)
        report = await service.engine.operate(
            PinPrefix(name=name, owner=tenant, token_ids=tokens, salt=salt, seconds=float(ttl), most=limits.tenant_pins)
        )
        assert report.pins is not None
        return JSONResponse(_shown(await _page_size(service), report.pins[0]))

    async def every(request: Request) -> Response:
        found = [(await _page_size(service), prefix) for service, prefix in await _pins(request)]
        return JSONResponse({"object": "list", "data": [_shown(size, prefix) for size, prefix in found]})

    async def one(request: Request) -> Response:
        service, prefix = await _find(request)
        return JSONResponse(_shown(await _page_size(service), prefix))

    async def let_go(request: Request) -> Response:
        name = request.path_params["prefix_id"]
        service = first if len(first.every) == 1 else (await _find(request))[0]
        await service.engine.operate(UnpinPrefix(name=name, owner=tenant_of(request)))
        return JSONResponse({"id": name, "object": "prefix", "deleted": True})

    async def _pins(request: Request) -> list[tuple[Service, PinnedPrefix]]:
        """Of every model."""
        reports = [
            (service, await service.engine.operate(ListPins(owner=tenant_of(request)))) for service in first.every
        ]
        return [(service, prefix) for service, report in reports for prefix in report.pins or ()]

    async def _find(request: Request) -> tuple[Service, PinnedPrefix]:
        for service, prefix in await _pins(request):
            if prefix.name == request.path_params["prefix_id"]:
                return service, prefix
        raise NotFoundError("there is no such prefix: it has expired, or never was", code="prefix_not_found")

    async def _page_size(service: Service) -> int:
        return (await service.engine.info()).page_size

    return [
        Route("/v1/prefixes", pin, methods=["POST"]),
        Route("/v1/prefixes", every, methods=["GET"]),
        Route("/v1/prefixes/{prefix_id}", one, methods=["GET"]),
        Route("/v1/prefixes/{prefix_id}", let_go, methods=["DELETE"]),
    ]


def _name(tokens: tuple[int, ...], salt: str) -> str:
    return "prefix_" + blake2b(msgspec.msgpack.encode((salt, tokens)), digest_size=_ID_BYTES).hexdigest()


def _shown(page_size: int, prefix: PinnedPrefix) -> dict[str, object]:
    """Tokens are those of whole pages: what follows them is not kept."""
    return {
        "id": prefix.name,
        "object": "prefix",
        "expires_at": int(time.time() + prefix.seconds),
        "tokens": prefix.pages * page_size,
        "held_tokens": prefix.held * page_size,
    }
