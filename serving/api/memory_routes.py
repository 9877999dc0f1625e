"""What is remembered of a tenant's users: to look at, to forget, to switch off.

    GET    /v1/memory?user=U          its entries, and whether it is on
    POST   /v1/memory                 {"user": U, "enabled": false}
    DELETE /v1/memory?user=U          forgets all of it; with &id=N one entry

A user is one of the tenant whose key asks.
"""

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from serving.api.request_body import read_typed
from serving.api.responses.body import MAX_USER_CHARS
from serving.api.typed_body import Body
from serving.errors import NotFoundError, RequestError
from serving.orchestrator.memory.entries import Person
from serving.orchestrator.memory.memories import Memories


class MemoryBody(Body, kw_only=True):
    user: str
    enabled: bool

    def check_together(self) -> None:
        _check_user(self.user)


def memory_routes(memories: Memories, max_body_bytes: int) -> list[Route]:
    async def shown(request: Request) -> Response:
        return await _shown(memories, _person(request, request.query_params.get("user")))

    async def switch(request: Request) -> Response:
        body = await read_typed(request, MemoryBody, max_body_bytes)
        body.check_together()
        person = _person(request, body.user)
        await memories.switch(person, body.enabled)
        return await _shown(memories, person)

    async def forget(request: Request) -> Response:
        person = _person(request, request.query_params.get("user"))
        wanted = request.query_params.get("id")
        if wanted is not None and not (wanted.isascii() and wanted.isdigit() and len(wanted) < 19):
            raise RequestError("id must be that of an entry, a number", param="id", code="invalid_value")
        gone = await memories.forget(person, None if wanted is None else int(wanted))
        if wanted is not None and not gone:
            raise NotFoundError("this user's memory has no such entry", param="id", code="entry_not_found")
        return JSONResponse({"object": "memory.deleted", "user": person.user, "deleted": gone})

    return [
        Route("/v1/memory", shown, methods=["GET"]),
        Route("/v1/memory", switch, methods=["POST"]),
        Route("/v1/memory", forget, methods=["DELETE"]),
    ]


async def _shown(memories: Memories, person: Person) -> Response:
    entries = await memories.entries(person)
    data = [
        {"id": str(entry.id), "level": entry.level, "text": entry.text, "created_at": int(entry.created)}
        for entry in entries
    ]
    return Response(
        msgspec.json.encode(
            {
                "object": "memory",
                "user": person.user,
                "enabled": await memories.is_on(person),
                "strategy": memories.strategy(person.tenant),
                "data": data,
            }
        ),
        media_type="application/json",
    )


def _person(request: Request, user: str | None) -> Person:
    return Person(request.state.caller.principal.tenant, _check_user(user))


def _check_user(user: str | None) -> str:
    if not user or len(user) > MAX_USER_CHARS:
        raise RequestError(
            f"user must be given, with at most {MAX_USER_CHARS} characters", param="user", code="invalid_value"
        )
    return user
