"""POST, GET and DELETE under /v1/containers."""

from collections.abc import Iterator
from functools import partial
from typing import BinaryIO
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from serving.api.caller import tenant_of
from serving.api.containers.body import ContainerBody, ContainerFileBody
from serving.api.containers.container_store import ContainerOwner, ContainerStore, no_file
from serving.api.files.file_store import FileStore
from serving.api.files.routes import DOWNLOAD
from serving.api.files.upload import read_upload
from serving.api.listing import is_ascending, limit_of, page, page_of
from serving.api.request_body import read_typed
from serving.errors import RequestError, UnsupportedError
from serving.orchestrator.tools.code_interpreter import CodeInterpreter
from serving.orchestrator.tools.file_names import plain_names
from serving.orchestrator.tools.registry import ToolRegistry

_BODY_BYTES = 128 << 10


def container_routes(containers: ContainerStore, files: FileStore, tools: ToolRegistry) -> list[Route]:
    most_minutes = containers.config.minutes

    async def create(request: Request) -> Response:
        if tools.get(CodeInterpreter.name) is None:
            raise UnsupportedError("this server runs no programs: its deployment has no tools.code_interpreter")
        body = await read_typed(request, ContainerBody, _BODY_BYTES)
        minutes = body.expires_after and body.expires_after.minutes
        if minutes is not None and minutes > most_minutes:
            raise RequestError(
                f"expires_after.minutes must be in 1 .. {most_minutes}, not {minutes}",
                param="expires_after.minutes",
                code="invalid_value",
            )
        ids = list(dict.fromkeys(body.file_ids or ()))
        found = [
            await files.find(tenant_of(request), file_id, param=f"file_ids[{number}]")
            for number, file_id in enumerate(ids)
        ]
        names = plain_names((file.id, file.filename) for file in found)
        paths = {name: files.path(file_id) for name, file_id in names.items()}
        made = await containers.create(_owner(request), body.name, minutes, paths)
        return JSONResponse(made.shown())

    async def listing(request: Request) -> Response:
        query = request.query_params
        found, more = await containers.listed(
            tenant_of(request),
            name=query.get("name"),
            after=query.get("after"),
            limit=limit_of(request),
            ascending=is_ascending(request),
        )
        return JSONResponse(page([one.shown() for one in found], more=more))

    async def facts(request: Request) -> Response:
        return JSONResponse((await containers.find(tenant_of(request), _container(request))).shown())

    async def delete(request: Request) -> Response:
        await containers.delete(tenant_of(request), _container(request))
        return JSONResponse({"id": _container(request), "object": "container.deleted", "deleted": True})

    async def add_file(request: Request) -> Response:
        """Of a form, or of a file that is here already."""
        owner, container_id = _owner(request), _container(request)
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "multipart/form-data":
            body = await read_typed(request, ContainerFileBody, _BODY_BYTES)
            known = await files.find(owner.tenant, body.file_id)
            (name,) = plain_names([(known.id, known.filename)])
            made = await containers.add(owner, container_id, name, files.path(known.id))
            return JSONResponse(made.shown())
        await containers.find(owner.tenant, container_id)
        async with read_upload(request, containers.config.bytes, purposes=()) as sent:
            (name,) = plain_names([("file", sent.name)])
            made = await containers.add(owner, container_id, name, sent.file.file)
        return JSONResponse(made.shown())

    async def file_listing(request: Request) -> Response:
        found = await containers.files(tenant_of(request), _container(request))
        missing = partial(no_file, _container(request), param="after")
        return JSONResponse(page_of(request, [file.shown() for file in found], missing))

    async def file_facts(request: Request) -> Response:
        return JSONResponse((await containers.find_file(tenant_of(request), *_file(request))).shown())

    async def content(request: Request) -> Response:
        found, opened = await containers.read(tenant_of(request), *_file(request))
        headers = {
            **DOWNLOAD,
            "content-disposition": f"attachment; filename*=UTF-8''{quote(found.name, safe='')}",
            "content-length": str(found.bytes),
        }
        return StreamingResponse(_pieces(opened), media_type="application/octet-stream", headers=headers)

    async def delete_file(request: Request) -> Response:
        await containers.delete_file(tenant_of(request), *_file(request))
        return JSONResponse({"id": _file(request)[1], "object": "container.file.deleted", "deleted": True})

    one, one_file = "/v1/containers/{container_id}", "/v1/containers/{container_id}/files/{file_id}"
    return [
        Route("/v1/containers", create, methods=["POST"]),
        Route("/v1/containers", listing, methods=["GET"]),
        Route(one, facts, methods=["GET"]),
        Route(one, delete, methods=["DELETE"]),
        Route(f"{one}/files", add_file, methods=["POST"]),
        Route(f"{one}/files", file_listing, methods=["GET"]),
        Route(one_file, file_facts, methods=["GET"]),
        Route(one_file, delete_file, methods=["DELETE"]),
        Route(f"{one_file}/content", content, methods=["GET"]),
    ]


def _owner(request: Request) -> ContainerOwner:
    principal = request.state.caller.principal
    return ContainerOwner(tenant=principal.tenant, own=principal.limits.storage)


def _container(request: Request) -> str:
    return request.path_params["container_id"]


def _file(request: Request) -> tuple[str, str]:
    return _container(request), request.path_params["file_id"]


def _pieces(opened: BinaryIO) -> Iterator[bytes]:
    with opened:
        while piece := opened.read(1 << 20):
            yield piece
