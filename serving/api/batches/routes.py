"""POST and GET under /v1/batches."""

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from serving.api.batches.batch import WINDOW_SECONDS, Batch, new_batch_id
from serving.api.batches.batch_body import BatchBody
from serving.api.batches.batch_store import BatchStore
from serving.api.batches.runner import BatchRunner
from serving.api.caller import tenant_of
from serving.api.files.file_store import FileStore
from serving.api.listing import limit_of, page
from serving.api.request_body import read_typed
from serving.api.service import Service
from serving.errors import RequestError

MAX_BODY_BYTES = 64 << 10


def batch_routes(service: Service, store: BatchStore, files: FileStore, runner: BatchRunner) -> list[Route]:
    async def create(request: Request) -> Response:
        body = await read_typed(request, BatchBody, MAX_BODY_BYTES)
        principal = request.state.caller.principal
        source = await files.find(principal.tenant, body.input_file_id, param="input_file_id")
        if source.purpose != "batch":
            raise RequestError(
                f'the file has purpose "{source.purpose}", not "batch"', param="input_file_id", code="invalid_value"
            )
        await files.check_room(principal.tenant, principal.limits.storage)  # what it answers becomes files
        now = int(service.now())
        batch = Batch(
            id=new_batch_id(),
            tenant=principal.tenant,
            principal=msgspec.msgpack.encode(principal),
            endpoint=body.endpoint,
            input_file_id=source.id,
            created_at=now,
            expires_at=now + WINDOW_SECONDS,
            output_seconds=body.output_expires_after and body.output_expires_after.seconds,
            metadata=body.metadata,
        )
        await store.add(batch)
        runner.wake()
        return JSONResponse(batch.shown(0, 0))

    async def read(request: Request) -> Response:
        batch, counts = await store.find(tenant_of(request), request.path_params["batch_id"])
        return JSONResponse(batch.shown(*counts))

    async def listing(request: Request) -> Response:
        limit = limit_of(request)
        found, more = await store.listed(tenant_of(request), after=request.query_params.get("after"), limit=limit)
        return JSONResponse(page([batch.shown(*counts) for batch, counts in found], more=more))

    async def cancel(request: Request) -> Response:
        batch, _ = await store.find(tenant_of(request), request.path_params["batch_id"])
        now = int(service.now())

        def begin(batch: Batch) -> Batch:
            if batch.status not in ("validating", "in_progress"):
                return batch
            return msgspec.structs.replace(batch, status="cancelling", cancelling_at=now)

        batch = await store.change(batch.id, begin)
        runner.wake()
        _, counts = await store.find(batch.tenant, batch.id)
        return JSONResponse(batch.shown(*counts))

    return [
        Route("/v1/batches", create, methods=["POST"]),
        Route("/v1/batches", listing, methods=["GET"]),
        Route("/v1/batches/{batch_id}", read, methods=["GET"]),
        Route("/v1/batches/{batch_id}/cancel", cancel, methods=["POST"]),
    ]
