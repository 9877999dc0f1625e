"""Every place of this server that holds data of persons, for their erasure.

Not among them, for no text is in them: the ledger of usage and the database of keys, which are the operator's books;
logs, traces and crash reports; pages of the prefix cache, which are numbers and go as others need the room. Prefixes
that a tenant pinned go with their time.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial

from serving.api.batches.batch_store import BatchStore
from serving.api.containers.container_purge import ContainerPurge
from serving.api.files.file_store import FileStore
from serving.api.responses.live import LiveResponses
from serving.events.event_log import EventLog
from serving.orchestrator.memory.memories import Memories
from serving.orchestrator.memory.store import MemoryStore
from serving.orchestrator.moderation.review import ReviewQueue
from serving.orchestrator.retrieval.catalog import Catalog
from serving.orchestrator.retrieval.erased_stores import erase_stores
from serving.orchestrator.retrieval.index import Index
from serving.orchestrator.semantic_cache.semantic_cache import SemanticCache
from serving.sessions.conversations.conversations import Conversations
from serving.sessions.erased_streams import erase_streams
from serving.sessions.erasure import Holder
from serving.sessions.generation_log import GenerationLog


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptData:
    """What a deployment keeps. None: nothing of the kind, or not in this process."""

    live: LiveResponses | None = None
    conversations: Conversations | None = None
    memories: Memories | MemoryStore | None = None
    batches: BatchStore | None = None
    files: FileStore | None = None
    containers: ContainerPurge | None = None
    stores: tuple[Catalog, Index] | None = None
    streams: GenerationLog | None = None
    review: ReviewQueue | None = None
    events: EventLog | None = None
    semantic_cache: SemanticCache | None = None

    @property
    def holders(self) -> list[Holder]:
        """First what writes into others: what is made in the background, and batches, which read and make files."""
        found = [
            self.live and Holder("background responses", self.live.erase),
            self.conversations and Holder("conversations", self.conversations.erase),
            self.memories and Holder("memory", self.memories.erase),
            self.batches and Holder("batches", partial(_of_tenant, self.batches.erase), by_user=False),
            self.stores and Holder("vector stores", partial(_of_tenant, partial(erase_stores, *self.stores)), False),
            self.containers and Holder("containers", self.containers.erase),
            self.files and Holder("files", partial(_of_tenant, self.files.erase), by_user=False),
            self.streams and Holder("streams", partial(_of_tenant, partial(erase_streams, self.streams)), False),
            self.review and Holder("moderation review", self.review.erase),
            self.events and Holder("events", self.events.erase),
            self.semantic_cache and Holder("semantic cache", partial(_of_tenant, self.semantic_cache.erase), False),
        ]
        return [holder for holder in found if holder]


async def _of_tenant(
    erase: Callable[[str, bool], Awaitable[Mapping[str, int]]], tenant: str, _: str | None, dry_run: bool
) -> Mapping[str, int]:
    return await erase(tenant, dry_run)
