"""Adapters while the server runs, of the admin listener alone.

    GET    /v1/adapters               those that there are, with their slots
    POST   /v1/adapters               {"name", "folder": inside of adapters.folder}
    DELETE /v1/adapters/{name}        streams that have it go on
    POST   /v1/adapters/{name}/pin    {"pinned": keeps it in its slot, or no longer}

Each answers once it is done, with what there is then.
"""

from dataclasses import asdict

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from serving.api.request_body import read_typed
from serving.api.service import Service
from serving.api.typed_body import Body
from serving.engine.adapter_messages import ListAdapters, LoadAdapter, PinAdapter, UnloadAdapter
from serving.engine.operation import Operation
from serving.errors import RequestError

_BODY_BYTES = 4096


class AdapterBody(Body, kw_only=True):
    name: str
    folder: str


class PinBody(Body, kw_only=True):
    pinned: bool


def adapter_routes(service: Service) -> list[Route]:
    async def answer(operation: Operation) -> Response:
        report = await service.engine.operate(operation)
        if service.adapters is not None:
            service.adapters.hear(report)
        return JSONResponse({"adapters": [asdict(state) for state in report.adapters or ()]})

    async def listed(_: Request) -> Response:
        return await answer(ListAdapters())

    async def load(request: Request) -> Response:
        body = await read_typed(request, AdapterBody, _BODY_BYTES)
        # As of those in the deployment: requests would go to the model of that name, and the adapter to nobody.
        if body.name in (*service.names, *(embedder.name for embedder in service.embedders)):
            raise RequestError(f"{body.name!r} is the name of a model here", param="name", code="adapter_exists")
        return await answer(LoadAdapter(name=body.name, folder=body.folder))

    async def unload(request: Request) -> Response:
        return await answer(UnloadAdapter(name=request.path_params["name"]))

    async def pin(request: Request) -> Response:
        body = await read_typed(request, PinBody, _BODY_BYTES)
        return await answer(PinAdapter(name=request.path_params["name"], pinned=body.pinned))

    return [
        Route("/v1/adapters", listed, methods=["GET"]),
        Route("/v1/adapters", load, methods=["POST"]),
        Route("/v1/adapters/{name}", unload, methods=["DELETE"]),
        Route("/v1/adapters/{name}/pin", pin, methods=["POST"]),
    ]
