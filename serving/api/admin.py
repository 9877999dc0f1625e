"""The admin listener: keys, tenants, usage, drain, metrics. A second application, on a port of its own.

    GET  /admin/status                       what the gateway sees
    GET  /admin/tenants                      tiers, tenants, and what they have open
    GET  /admin/keys        POST /admin/keys                        {"tenant", "scopes", "name", "expires_seconds"}
    POST /admin/keys/{id}/rotate             {"overlap_seconds"}
    POST /admin/keys/{id}/revoke | disable | enable
    GET  /admin/usage?since=&until=&tenant=  sums by tenant, key and model
    POST /admin/drain                        {"on"}: admit nobody new, or again
    /v1/engine                               operations on the engine, see `engine_routes.py`
    /v1/adapters                             see `adapter_routes.py`
    /admin/semantic_cache                    see `semantic_cache_routes.py`
    POST /admin/erase                        see `erasure_routes.py`
    /admin/reviews                           see `review_routes.py`
    GET  /metrics, /status, /health, /health/live, /health/ready

All need the scope admin, but usage, which a key with the scope usage may read of its own tenant.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from serving.access import NAME
from serving.api.adapter_routes import adapter_routes
from serving.api.caller import Caller
from serving.api.engine_routes import engine_routes
from serving.api.erasure_routes import erasure_routes
from serving.api.error_reply import pass_on
from serving.api.front import Front
from serving.api.gate import Gate
from serving.api.health import health_routes
from serving.api.request_body import read_typed
from serving.api.review_routes import review_routes
from serving.api.semantic_cache_routes import semantic_cache_routes
from serving.api.service import Service
from serving.api.status.board import StatusBoard
from serving.api.status.routes import status_routes
from serving.api.typed_body import Body
from serving.config import ServerConfig
from serving.errors import NotFoundError, RequestError
from serving.gateway.api_key import ApiKey
from serving.gateway.gateway import Gateway
from serving.gateway.key_store import KeyRecord, KeyStore
from serving.gateway.ledger import sum_usage
from serving.gateway.principal import ANONYMOUS, Scope
from serving.sessions.erasure import Holder

BODY_BYTES = 64 << 10
USAGE_PATH = "/admin/usage"
DEFAULT_OVERLAP_SECONDS = 86_400.0
MOST_OPEN_SHOWN = 1000
_KEY_VERBS = ("revoke", "disable", "enable")

Seconds = Annotated[float, msgspec.Meta(gt=0, le=10 * 366 * 86_400)]


class NewKeyBody(Body, kw_only=True):
    tenant: Annotated[str, msgspec.Meta(pattern=rf"^{NAME.pattern}$")]
    scopes: Annotated[list[str], msgspec.Meta(min_length=1, max_length=8)] | None = None
    name: Annotated[str, msgspec.Meta(max_length=128)] | None = None
    expires_seconds: Seconds | None = None


class RotateBody(Body, kw_only=True):
    overlap_seconds: Annotated[float, msgspec.Meta(ge=0, le=366 * 86_400)] | None = None


class DrainBody(Body, kw_only=True):
    on: bool


def build_admin_app(
    service: Service, server: ServerConfig, board: StatusBoard | None = None, holders: Sequence[Holder] = ()
) -> Starlette:
    """`server` says which names the listener answers to, as the public one's does for that; `holders` what a tenant's
    erasure goes to."""
    gateway, board = service.gateway, board or StatusBoard(service)
    app = Starlette(
        routes=[
            *_state_routes(gateway),
            *_key_routes(gateway),
            *_usage_routes(gateway),
            *engine_routes(service.engine),
            *adapter_routes(service),
            *erasure_routes(holders),
            *review_routes(None if service.moderation is None else service.moderation.review),
            *([] if service.semantic_cache is None else semantic_cache_routes(service.semantic_cache)),
            *health_routes(service),
            *status_routes(board),
        ],
        middleware=[
            Middleware(
                Front,
                metrics=service.metrics,
                gate=Gate(server),
                gateway=gateway,
                grants={USAGE_PATH: Scope.USAGE},
                default_grant=Scope.ADMIN,
            )
        ],
        exception_handlers={HTTPException: pass_on},
    )
    app.router.redirect_slashes = False
    return app


def _state_routes(gateway: Gateway) -> list[Route]:
    async def status(_: Request) -> Response:
        shown = [
            {
                "tenant": lease.principal.tenant,
                "key_id": lease.principal.key_id,
                "class": lease.priority.value,
                "waiting": lease.is_waiting,
                "position": lease.notice.position,
            }
            for lease in gateway.leases[:MOST_OPEN_SHOWN]
        ]
        return JSONResponse(
            {
                "authentication": not gateway.is_open,
                "draining": gateway.is_draining,
                "degradation": gateway.rung.name.lower(),
                "limit_store_up": gateway.store_is_up,
                "open_requests": len(gateway.leases),
                "open": shown,
            }
        )

    async def tenants(_: Request) -> Response:
        access = gateway.access
        running = Counter(lease.principal.tenant for lease in gateway.leases)
        names = {**access.tenants, **dict.fromkeys(sorted(running.keys() - access.tenants.keys()))}
        found = [
            {
                "tenant": name,
                "tier": None if config is None else config.tier,
                "disabled": config is not None and config.disabled,
                "open_requests": running[name],
            }
            for name, config in names.items()
        ]
        tiers = {name: asdict(tier) for name, tier in access.tiers.items()}
        return _json({"tenants": found, "tiers": tiers})

    async def drain(request: Request) -> Response:
        body = await read_typed(request, DrainBody, BODY_BYTES)
        gateway.drain(on=body.on)
        return JSONResponse({"draining": gateway.is_draining, "open_requests": len(gateway.leases)})

    return [
        Route("/admin/status", status, methods=["GET"]),
        Route("/admin/tenants", tenants, methods=["GET"]),
        Route("/admin/drain", drain, methods=["POST"]),
    ]


def _key_routes(gateway: Gateway) -> list[Route]:
    def store() -> KeyStore:
        if gateway.keys is None:
            raise NotFoundError("this server keeps no keys: auth.keys names no database", code="no_key_store")
        return gateway.keys

    async def listed(_: Request) -> Response:
        return _json({"keys": [_shown(record) for record in store().records()]})

    async def create(request: Request) -> Response:
        body = await read_typed(request, NewKeyBody, BODY_BYTES)
        if body.tenant == ANONYMOUS:
            raise RequestError(f"{ANONYMOUS} is the server's own name", param="tenant", code="invalid_value")
        expires = None if body.expires_seconds is None else time.time() + body.expires_seconds
        key = store().create(body.tenant, _scopes(body.scopes), name=body.name or "", expires=expires)
        return _json(_once(key), status=201)

    async def rotate(request: Request) -> Response:
        body = await read_typed(request, RotateBody, BODY_BYTES)
        overlap = DEFAULT_OVERLAP_SECONDS if body.overlap_seconds is None else body.overlap_seconds
        return _json(_once(store().rotate(request.path_params["key_id"], overlap_seconds=overlap)))

    async def change(request: Request) -> Response:
        key_id, verb = request.path_params["key_id"], request.url.path.rpartition("/")[2]
        if verb == "revoke":
            store().revoke(key_id)
        else:
            store().disable(key_id, disabled=verb == "disable")
        return _json({"id": key_id, "done": verb})

    return [
        Route("/admin/keys", listed, methods=["GET"]),
        Route("/admin/keys", create, methods=["POST"]),
        Route("/admin/keys/{key_id}/rotate", rotate, methods=["POST"]),
        *(
            Route(f"/admin/keys/{{key_id}}/{verb}", change, methods=["POST"])
            for verb in ("revoke", "disable", "enable")
        ),
    ]


def _usage_routes(gateway: Gateway) -> list[Route]:
    async def usage(request: Request) -> Response:
        if gateway.ledger is None:
            raise NotFoundError("this server keeps no usage: usage.ledger names no database", code="no_ledger")
        caller: Caller = request.state.caller
        query = request.query_params
        tenant = query.get("tenant")
        if Scope.ADMIN not in caller.principal.scopes:
            tenant = caller.principal.tenant
        sums = await asyncio.to_thread(
            sum_usage, gateway.ledger.path, since=_number(query, "since"), until=_number(query, "until"), tenant=tenant
        )
        return _json({"usage": [asdict(row) for row in sums]})

    return [Route(USAGE_PATH, usage, methods=["GET"])]


def _number(query: Any, name: str) -> float | None:
    text = query.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 12):
        raise RequestError(f"{name} must be seconds since 1970", param=name, code="invalid_value")
    return float(text)


def _scopes(words: list[str] | None) -> list[Scope]:
    try:
        return [Scope.INFERENCE] if words is None else [Scope(word) for word in words]
    except ValueError:
        known = ", ".join(scope.value for scope in Scope)
        raise RequestError(f"scopes must be some of {known}", param="scopes", code="invalid_value") from None


def _shown(record: KeyRecord) -> dict[str, Any]:
    return {**asdict(record), "scopes": sorted(scope.value for scope in record.scopes)}


def _once(key: ApiKey) -> dict[str, str]:
    return {"id": key.id, "key": key.text}


def _json(body: dict[str, Any], *, status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status_code=status, media_type="application/json")
