"""POST, GET and DELETE under /v1/containers."""

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from serving.api.caller import tenant_of
from serving.api.containers.body import ContainerBody
from serving.api.containers.container_store import ContainerStore
from serving.api.containers.file_routes import BODY_BYTES, ONE, container_of, owner_of
from serving.api.files.file_store import FileStore
from serving.api.listing import is_ascending, limit_of, page
from serving.api.request_body import read_typed
from serving.errors import RequestError, UnsupportedError
from serving.orchestrator.tools.code_interpreter import CodeInterpreter
from serving.orchestrator.tools.file_names import plain_names
from serving.orchestrator.tools.registry import ToolRegistry


def container_routes(containers: ContainerStore, files: FileStore, tools: ToolRegistry) -> list[Route]:
    most_minutes = containers.config.minutes

    async def create(request: Request) -> Response:
        if tools.get(CodeInterpreter.name) is None:
            raise UnsupportedError("this server runs no programs: its deployment has no tools.code_interpreter")
        body = await read_typed(request, ContainerBody, BODY_BYTES)
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
        made = await containers.create(owner_of(request), body.name, minutes, paths)
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
        return JSONResponse((await containers.find(tenant_of(request), container_of(request))).shown())

    async def delete(request: Request) -> Response:
        await containers.delete(tenant_of(request), container_of(request))
        return JSONResponse({"id": container_of(request), "object": "container.deleted", "deleted": True})

    return [
        Route("/v1/containers", create, methods=["POST"]),
        Route("/v1/containers", listing, methods=["GET"]),
        Route(ONE, facts, methods=["GET"]),
        Route(ONE, delete, methods=["DELETE"]),
    ]
