"""Paths of stores, and of the search in one."""

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from serving.api.caller import tenant_of
from serving.api.connection import while_connected
from serving.api.listing import is_ascending, limit_of, page
from serving.api.request_body import read_typed
from serving.api.vector_stores.bodies import SearchBody, StoreBody, StoreUpdateBody
from serving.api.vector_stores.desk import Desk
from serving.errors import QuotaError
from serving.orchestrator.retrieval.catalog import Slice
from serving.orchestrator.retrieval.search import Found
from serving.orchestrator.retrieval.vector_store import VectorStore, new_store_id

MAX_BODY_BYTES = 256 << 10
STORES = "/v1/vector_stores"


def store_routes(desk: Desk) -> list[Route]:
    catalog, service = desk.catalog, desk.service

    async def shown(store: VectorStore) -> Response:
        counts, size = await catalog.summary(store.id)
        return JSONResponse(store.shown(counts, size, service.now()))

    async def create(request: Request) -> Response:
        body = await read_typed(request, StoreBody, MAX_BODY_BYTES)
        body.check_together()
        tenant, now = tenant_of(request), int(service.now())
        store = VectorStore(
            id=new_store_id(),
            tenant=tenant,
            encoder=desk.encoding.name,
            created_at=now,
            last_active_at=now,
            name=body.name or "",
            description=body.description,
            metadata=body.metadata or {},
            expires_days=body.expires_after and body.expires_after.days,
        )
        files = await desk.prepared(request, store.id, body.file_ids or (), strategy=body.chunking_strategy)
        await catalog.add_store(store, request.state.caller.principal.limits.storage.vector_stores)
        if files:
            try:
                await desk.attach(files)
            except QuotaError:  # who is refused has no store
                await catalog.delete_store(tenant, store.id)
                raise
        return await shown(store)

    async def listing(request: Request) -> Response:
        found, more = await catalog.stores(tenant_of(request), slice_of(request))
        data = []
        for store in found:
            counts, size = await catalog.summary(store.id)
            data.append(store.shown(counts, size, service.now()))
        return JSONResponse(page(data, more=more))

    async def read(request: Request) -> Response:
        return await shown(await desk.store(request))

    async def update(request: Request) -> Response:
        body = await read_typed(request, StoreUpdateBody, MAX_BODY_BYTES)
        return await shown(await catalog.change_store(tenant_of(request), desk.store_id(request), _change(body)))

    async def delete(request: Request) -> Response:
        store_id = desk.store_id(request)
        await catalog.delete_store(tenant_of(request), store_id)
        desk.runner.wake()
        return JSONResponse({"id": store_id, "object": "vector_store.deleted", "deleted": True})

    async def search(request: Request) -> Response:
        body = await read_typed(request, SearchBody, MAX_BODY_BYTES)
        tenant, principal = tenant_of(request), desk.principal(request)
        finding = desk.search.find(tenant, (desk.store_id(request),), body.asked(), principal)
        found = await while_connected(request.receive, finding)
        return JSONResponse(
            {
                "object": "vector_store.search_results.page",
                "search_query": body.texts,
                "data": [_shown(each) for each in found],
                "has_more": False,
                "next_page": None,
            }
        )

    one = f"{STORES}/{{vector_store_id}}"
    return [
        Route(STORES, create, methods=["POST"]),
        Route(STORES, listing, methods=["GET"]),
        Route(one, read, methods=["GET"]),
        Route(one, update, methods=["POST"]),
        Route(one, delete, methods=["DELETE"]),
        Route(f"{one}/search", search, methods=["POST"]),
    ]


def slice_of(request: Request) -> Slice:
    """Raises RequestError."""
    query = request.query_params
    return Slice(
        limit=limit_of(request),
        ascending=is_ascending(request),
        after=query.get("after"),
        before=query.get("before"),
    )


def _change(body: StoreUpdateBody):
    def change(store: VectorStore) -> VectorStore:
        changes: dict[str, object] = {}
        if body.name is not msgspec.UNSET:
            changes["name"] = body.name or ""
        if body.metadata is not msgspec.UNSET:
            changes["metadata"] = body.metadata or {}
        if body.expires_after is not msgspec.UNSET:
            changes["expires_days"] = body.expires_after and body.expires_after.days
        return msgspec.structs.replace(store, **changes)

    return change


def _shown(found: Found) -> dict[str, object]:
    chunk = found.held.embedded.passage.chunk
    return {
        "file_id": found.file.file_id,
        "filename": found.file.filename,
        "score": found.score,
        "attributes": found.file.attributes,
        "content": [{"type": "text", "text": chunk.text, "start": chunk.start, "end": chunk.end}],
        "citation": found.citation,
    }
