"""POST, GET and DELETE under /v1/files."""

import sqlite3
from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from serving.api.caller import tenant_of
from serving.api.files.file_store import FileStore
from serving.api.files.upload import read_upload
from serving.api.listing import is_ascending, limit_of, page

MOST_FILES = 10_000  # listed at a time
DOWNLOAD = {
    "content-disposition": "attachment",  # never shown as a page of this server's
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}


def file_routes(files: FileStore, in_use: Callable[[sqlite3.Connection, str], bool]) -> list[Route]:
    async def upload(request: Request) -> Response:
        tenant = tenant_of(request)
        own = request.state.caller.principal.limits.storage
        await files.check_room(tenant, own)
        async with read_upload(request, files.max_file_bytes) as sent:
            chunks = iter(lambda: sent.file.file.read(1 << 20), b"")
            seconds = sent.expires_after and sent.expires_after.seconds
            made = await files.add(tenant, sent.name, sent.purpose, chunks, own, seconds)
        return JSONResponse(made.shown())

    async def listing(request: Request) -> Response:
        query = request.query_params
        found, more = await files.listed(
            tenant_of(request),
            purpose=query.get("purpose"),
            after=query.get("after"),
            limit=limit_of(request, default=MOST_FILES, most=MOST_FILES),
            ascending=is_ascending(request),
        )
        return JSONResponse(page([file.shown() for file in found], more=more))

    async def facts(request: Request) -> Response:
        return JSONResponse((await files.find(tenant_of(request), request.path_params["file_id"])).shown())

    async def content(request: Request) -> Response:
        found = await files.find(tenant_of(request), request.path_params["file_id"])
        return FileResponse(files.path(found.id), media_type="application/octet-stream", headers=DOWNLOAD)

    async def delete(request: Request) -> Response:
        file_id = request.path_params["file_id"]
        await files.delete(tenant_of(request), file_id, in_use)
        return JSONResponse({"id": file_id, "object": "file", "deleted": True})

    return [
        Route("/v1/files", upload, methods=["POST"]),
        Route("/v1/files", listing, methods=["GET"]),
        Route("/v1/files/{file_id}", facts, methods=["GET"]),
        Route("/v1/files/{file_id}", delete, methods=["DELETE"]),
        Route("/v1/files/{file_id}/content", content, methods=["GET"]),
    ]
