"""Paths of a store's files, and of their batches."""

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from serving.api.caller import tenant_of
from serving.api.listing import page
from serving.api.request_body import read_typed
from serving.api.vector_stores.bodies import BatchFile, FileAttributesBody, FileBatchBody, StoreFileBody, plain
from serving.api.vector_stores.desk import Desk
from serving.api.vector_stores.store_routes import MAX_BODY_BYTES, STORES, slice_of
from serving.errors import NotFoundError, RequestError
from serving.orchestrator.retrieval.vector_store import FILE_STATUSES, FileBatch, new_batch_id

FILES = f"{STORES}/{{vector_store_id}}/files"
BATCHES = f"{STORES}/{{vector_store_id}}/file_batches"


def store_file_routes(desk: Desk) -> list[Route]:
    catalog = desk.catalog

    async def attach(request: Request) -> Response:
        body = await read_typed(request, StoreFileBody, MAX_BODY_BYTES)
        store = await catalog.living_store(tenant_of(request), desk.store_id(request))
        given = BatchFile(file_id=body.file_id, attributes=body.attributes, chunking_strategy=body.chunking_strategy)
        (kept,) = await desk.attach([await desk.prepare(request, store.id, given)])
        return JSONResponse(kept.shown())

    async def listing(request: Request) -> Response:
        store = await desk.store(request)
        found, more = await catalog.files(store.id, slice_of(request), status=_status(request))
        return JSONResponse(page([file.shown() for file in found], more=more))

    async def read(request: Request) -> Response:
        store = await desk.store(request)
        return JSONResponse((await catalog.file(store.id, request.path_params["file_id"])).shown())

    async def update(request: Request) -> Response:
        body = await read_typed(request, FileAttributesBody, MAX_BODY_BYTES)
        store = await desk.store(request)
        file = await catalog.file(store.id, request.path_params["file_id"])
        attributes = plain(body.attributes)
        changed = await catalog.change_file(
            store.id, file.file_id, lambda at: msgspec.structs.replace(at, attributes=attributes)
        )
        return JSONResponse((changed or file).shown())

    async def detach(request: Request) -> Response:
        store = await desk.store(request)
        file = await catalog.file(store.id, request.path_params["file_id"])
        await catalog.detach(store.id, file.file_id)
        desk.runner.wake()
        return JSONResponse({"id": file.file_id, "object": "vector_store.file.deleted", "deleted": True})

    async def content(request: Request) -> Response:
        """The text as it was read: what offsets count in."""
        store = await desk.store(request)
        file = await catalog.file(store.id, request.path_params["file_id"])
        document = await desk.index.document(store.id, file.file_id)
        if document is None or file.status != "completed":
            raise NotFoundError(
                f"the file {file.file_id} is {file.status}: its text can be read once it is completed",
                param="file_id",
                code="file_not_completed",
            )
        data = [{"type": "text", "text": document.text}]
        return JSONResponse(
            {"object": "vector_store.file_content.page", "data": data, "has_more": False, "next_page": None}
        )

    one = f"{FILES}/{{file_id}}"
    return [
        Route(FILES, attach, methods=["POST"]),
        Route(FILES, listing, methods=["GET"]),
        Route(one, read, methods=["GET"]),
        Route(one, update, methods=["POST"]),
        Route(one, detach, methods=["DELETE"]),
        Route(f"{one}/content", content, methods=["GET"]),
    ]


def file_batch_routes(desk: Desk) -> list[Route]:
    catalog = desk.catalog

    async def create(request: Request) -> Response:
        body = await read_typed(request, FileBatchBody, MAX_BODY_BYTES)
        store = await catalog.living_store(tenant_of(request), desk.store_id(request))
        batch = FileBatch(id=new_batch_id(), store_id=store.id, created_at=int(desk.service.now()))
        given = body.listed()
        if not given:
            raise RequestError("file_ids must name a file", param="file_ids", code="invalid_value")
        await desk.attach([await desk.prepare(request, store.id, each, batch) for each in given], batch)
        _, counts = await catalog.batch(store.id, batch.id)
        return JSONResponse(batch.shown(counts))

    async def read(request: Request) -> Response:
        store = await desk.store(request)
        batch, counts = await catalog.batch(store.id, request.path_params["batch_id"])
        return JSONResponse(batch.shown(counts))

    async def cancel(request: Request) -> Response:
        store = await desk.store(request)
        batch, counts = await catalog.cancel_batch(store.id, request.path_params["batch_id"])
        desk.runner.wake()
        return JSONResponse(batch.shown(counts))

    async def listing(request: Request) -> Response:
        store = await desk.store(request)
        batch, _ = await catalog.batch(store.id, request.path_params["batch_id"])
        found, more = await catalog.files(store.id, slice_of(request), status=_status(request), batch_id=batch.id)
        return JSONResponse(page([file.shown() for file in found], more=more))

    one = f"{BATCHES}/{{batch_id}}"
    return [
        Route(BATCHES, create, methods=["POST"]),
        Route(one, read, methods=["GET"]),
        Route(f"{one}/cancel", cancel, methods=["POST"]),
        Route(f"{one}/files", listing, methods=["GET"]),
    ]


def _status(request: Request) -> str | None:
    """Raises RequestError."""
    status = request.query_params.get("filter")
    if status is not None and status not in FILE_STATUSES:
        raise RequestError(f"filter must be {' or '.join(FILE_STATUSES)}", param="filter", code="invalid_value")
    return status
