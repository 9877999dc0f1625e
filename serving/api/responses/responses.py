"""Everything of responses and conversations that an application needs, over one store."""

from functools import partial

from starlette.routing import Route

from serving.api.containers.container_store import ContainerStore
from serving.api.conversations.routes import conversation_routes
from serving.api.files.file_store import FileStore
from serving.api.responses.live import LiveResponses
from serving.api.responses.made import TurnService
from serving.api.responses.record import close_lost
from serving.api.responses.routes import response_routes
from serving.api.service import Service
from serving.orchestrator.retrieval.catalog import Catalog
from serving.sessions.conversations.conversations import Conversations
from serving.sessions.conversations.keeper import Keeper


class Responses:
    def __init__(
        self,
        service: Service,
        conversations: Conversations,
        max_body_bytes: int,
        *,
        files: FileStore | None = None,
        containers: ContainerStore | None = None,
        stores: Catalog | None = None,
    ) -> None:
        """`files` are those that programs of a turn may read, `containers` where they leave theirs; `stores` are
        searched."""
        self.conversations = conversations
        self.live = LiveResponses(one_tenant=service.gateway.is_open)
        self.keeper = Keeper(conversations, partial(close_lost, conversations), self.live.cancel)
        turns = TurnService(
            service=service, conversations=conversations, files=files, containers=containers, stores=stores
        )
        self.routes: list[Route] = [
            *response_routes(turns, self.live, max_body_bytes),
            *conversation_routes(service, conversations, max_body_bytes),
        ]

    async def close(self) -> None:
        """What is made in the background ends here, with what there is of it."""
        await self.live.close()
        await self.conversations.store.close()
