"""What a deployment keeps of persons on disk and in databases, opened without a server."""

import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

from serving.api.batches.batch_store import BatchStore
from serving.api.containers.container_purge import ContainerPurge
from serving.api.containers.container_store import ContainerStore
from serving.api.data_holders import KeptData
from serving.api.files.file_store import FileStore
from serving.api.vector_stores.vector_stores import open_catalog, open_index
from serving.app import build_conversations, build_events, build_log
from serving.config import Deployment
from serving.observability.metrics import Metrics
from serving.orchestrator.memory.store import MemoryStore
from serving.orchestrator.moderation.moderation_metrics import ModerationMetrics
from serving.orchestrator.moderation.review import ReviewQueue
from serving.settings.containers import ContainersConfig

T = TypeVar("T")


def open_kept_data(deployment: Deployment, opened: AsyncExitStack) -> KeptData:
    """Closed with `opened`. Nothing is made that is not there. Raises ConfigError."""

    def closed(made: T, close: Callable[[], Any]) -> T:
        opened.callback(close)
        return made

    metrics = Metrics(deployment.name)
    kept: dict[str, Any] = {}
    conversations = deployment.conversations
    if conversations.url is not None or _is_file(conversations.path):
        kept["conversations"] = build_conversations(conversations)
        opened.push_async_callback(kept["conversations"].store.close)
    if deployment.memory is not None and _is_file(deployment.memory.path):
        memories = MemoryStore(deployment.memory.path)
        kept["memories"] = closed(memories, memories.close)
    folder = deployment.files.folder
    if folder is not None and folder.is_dir():
        files = FileStore(deployment.files, folder)
        kept["files"] = closed(files, files.facts.close)
        code = deployment.tools.code_interpreter
        limits = ContainersConfig() if code is None else code.containers
        kept["containers"] = ContainerPurge(ContainerStore(files, folder, limits, time.time))
        kept["batches"] = BatchStore(files.facts, deployment.files.max_tenant_batches)
    if deployment.retrieval is not None and deployment.retrieval.folder.is_dir():
        catalog = open_catalog(deployment.retrieval, time.time)
        index = open_index(deployment.retrieval)
        opened.push_async_callback(index.close)
        kept["stores"] = closed(catalog, catalog.close), index
    if deployment.streams.redis is not None or _is_file(deployment.streams.path):
        kept["streams"] = build_log(deployment.streams)
        opened.push_async_callback(kept["streams"].close)
    review = None if deployment.moderation is None else deployment.moderation.review
    if review is not None and review.is_file():
        queue = ReviewQueue(review, ModerationMetrics(metrics.registry))
        kept["review"] = closed(queue, queue.close)
    if deployment.events is not None and _is_file(deployment.events.outbox):
        events = build_events(deployment, metrics)
        kept["events"] = closed(events, events.close)
    return KeptData(**kept)


def _is_file(path: Path | None) -> bool:
    return path is not None and path.is_file()
