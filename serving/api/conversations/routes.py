"""POST, GET and DELETE under /v1/conversations."""

from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from serving.api.conversations.body import ConversationBody, ItemsBody, MetadataBody
from serving.api.listing import page
from serving.api.request_body import read_typed
from serving.api.responses.items import stored_items
from serving.api.responses.outline import visible
from serving.api.responses.owner import owner_for
from serving.api.responses.routes import include_of, item_page, owner_of
from serving.api.service import Service
from serving.errors import NotFoundError
from serving.sessions.conversations.conversations import Conversations
from serving.sessions.conversations.ids import new_id, new_tree, tree_of
from serving.sessions.conversations.records import Conversation, Item, Owner


def conversation_routes(service: Service, conversations: Conversations, max_body_bytes: int) -> list[Route]:
    async def create(request: Request) -> Response:
        body = await read_typed(request, ConversationBody, max_body_bytes)
        tree = new_tree()
        items = stored_items(body.items or [], partial(new_id, tree=tree))
        owner = owner_for(request.state.caller.principal, conversations.quota, body.user or "")
        now = int(service.now())
        return JSONResponse(
            _shown(await conversations.create_conversation(owner, body.metadata or {}, items, now, tree))
        )

    async def read(request: Request) -> Response:
        return JSONResponse(_shown(await conversations.conversation(owner_of(request), _name(request))))

    async def update(request: Request) -> Response:
        body = await read_typed(request, MetadataBody, max_body_bytes)
        changed = await conversations.set_metadata(_writer(request), _name(request), body.metadata or {})
        return JSONResponse(_shown(changed))

    async def delete(request: Request) -> Response:
        await conversations.delete_conversation(owner_of(request), _name(request))
        return JSONResponse({"id": _name(request), "object": "conversation.deleted", "deleted": True})

    async def listing(request: Request) -> Response:
        include = include_of(request)
        items = await conversations.items(owner_of(request), _name(request))
        return JSONResponse(item_page(request, [visible(item, include) for item in items]))

    async def add(request: Request) -> Response:
        include = include_of(request)
        body = await read_typed(request, ItemsBody, max_body_bytes)
        items = stored_items(body.items, partial(new_id, tree=tree_of(_name(request)) or new_tree()))
        await conversations.add_items(_writer(request), _name(request), items, int(service.now()))
        return JSONResponse(page([visible(item, include) for item in items], more=False))

    async def item(request: Request) -> Response:
        include = include_of(request)
        items = await conversations.items(owner_of(request), _name(request))
        return JSONResponse(visible(_find(items, request.path_params["item_id"]), include))

    async def drop(request: Request) -> Response:
        await conversations.drop_item(owner_of(request), _name(request), request.path_params["item_id"])
        return JSONResponse(_shown(await conversations.conversation(owner_of(request), _name(request))))

    def _writer(request: Request) -> Owner:
        return owner_for(request.state.caller.principal, conversations.quota)

    return [
        Route("/v1/conversations", create, methods=["POST"]),
        Route("/v1/conversations/{conversation_id}", read, methods=["GET"]),
        Route("/v1/conversations/{conversation_id}", update, methods=["POST"]),
        Route("/v1/conversations/{conversation_id}", delete, methods=["DELETE"]),
        Route("/v1/conversations/{conversation_id}/items", listing, methods=["GET"]),
        Route("/v1/conversations/{conversation_id}/items", add, methods=["POST"]),
        Route("/v1/conversations/{conversation_id}/items/{item_id}", item, methods=["GET"]),
        Route("/v1/conversations/{conversation_id}/items/{item_id}", drop, methods=["DELETE"]),
    ]


def _name(request: Request) -> str:
    return request.path_params["conversation_id"]


def _shown(made: Conversation) -> dict[str, Any]:
    return {"id": made.id, "object": "conversation", "created_at": made.created_at, "metadata": made.metadata}


def _find(items: list[Item], item_id: str) -> Item:
    """Raises NotFoundError."""
    for item in items:
        if item["id"] == item_id:
            return item
    raise NotFoundError(f"there is no item {item_id[:100]!r} here", param="item_id", code="item_not_found")
