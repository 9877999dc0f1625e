"""POST, GET and DELETE under /v1/containers/{container_id}/files."""

from collections.abc import Iterator
from functools import partial
from typing import BinaryIO
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from serving.api.caller import tenant_of
from serving.api.containers.body import ContainerFileBody
from serving.api.containers.container_store import ContainerOwner, ContainerStore, no_file
from serving.api.files.file_store import FileStore
from serving.api.files.routes import DOWNLOAD
from serving.api.files.upload import read_upload
from serving.api.listing import page_of
from serving.api.request_body import read_typed
from serving.orchestrator.tools.file_names import plain_names

ONE = "/v1/containers/{container_id}"
BODY_BYTES = 128 << 10


def container_file_routes(containers: ContainerStore, files: FileStore) -> list[Route]:
    async def add(request: Request) -> Response:
        """Of a form, or of a file that is here already."""
        owner, container_id = owner_of(request), container_of(request)
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "multipart/form-data":
            body = await read_typed(request, ContainerFileBody, BODY_BYTES)
            known = await files.find(owner.tenant, body.file_id)
            (name,) = plain_names([(known.id, known.filename)])
            made = await containers.add(owner, container_id, name, files.path(known.id))
            return JSONResponse(made.shown())
        await containers.find(owner.tenant, container_id)
        async with read_upload(request, containers.config.bytes, purposes=()) as sent:
            (name,) = plain_names([("file", sent.name)])
            made = await containers.add(owner, container_id, name, sent.file.file)
        return JSONResponse(made.shown())

    async def listing(request: Request) -> Response:
        found = await containers.files(tenant_of(request), container_of(request))
        missing = partial(no_file, container_of(request), param="after")
        return JSONResponse(page_of(request, [file.shown() for file in found], missing))

    async def facts(request: Request) -> Response:
        return JSONResponse((await containers.find_file(tenant_of(request), *_file(request))).shown())

    async def content(request: Request) -> Response:
        found, opened = await containers.read(tenant_of(request), *_file(request))
        headers = {
            **DOWNLOAD,
            "content-disposition": f"attachment; filename*=UTF-8''{quote(found.name, safe='')}",
            "content-length": str(found.bytes),
        }
        return StreamingResponse(_pieces(opened), media_type="application/octet-stream", headers=headers)

    async def delete(request: Request) -> Response:
        await containers.delete_file(tenant_of(request), *_file(request))
        return JSONResponse({"id": _file(request)[1], "object": "container.file.deleted", "deleted": True})

    many, one = f"{ONE}/files", f"{ONE}/files/{{file_id}}"
    return [
        Route(many, add, methods=["POST"]),
        Route(many, listing, methods=["GET"]),
        Route(one, facts, methods=["GET"]),
        Route(one, delete, methods=["DELETE"]),
        Route(f"{one}/content", content, methods=["GET"]),
    ]


def owner_of(request: Request) -> ContainerOwner:
    principal = request.state.caller.principal
    return ContainerOwner(tenant=principal.tenant, own=principal.limits.storage)


def container_of(request: Request) -> str:
    return request.path_params["container_id"]


def _file(request: Request) -> tuple[str, str]:
    return container_of(request), request.path_params["file_id"]


def _pieces(opened: BinaryIO) -> Iterator[bytes]:
    with opened:
        while piece := opened.read(1 << 20):
            yield piece
