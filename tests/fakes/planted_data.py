"""A tenant's word, put into every place on disk where a deployment keeps what persons say."""

import json
import sqlite3
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import numpy as np
from prometheus_client import CollectorRegistry

from serving.api.batches.batch import Batch
from serving.api.batches.batch_store import BatchStore
from serving.api.containers.container_store import ContainerOwner, ContainerStore
from serving.api.files.file_store import FileStore
from serving.config import FilesConfig
from serving.events.outbox import Entry, Outbox
from serving.gateway.principal import Principal
from serving.orchestrator.memory.entries import Exchange, Person
from serving.orchestrator.memory.store import MemoryStore
from serving.orchestrator.moderation.judges.judge import Finding
from serving.orchestrator.moderation.moderation_metrics import ModerationMetrics
from serving.orchestrator.moderation.review import ReviewQueue
from serving.orchestrator.moderation.review_record import Subject
from serving.orchestrator.retrieval.catalog import Catalog, CatalogLimits
from serving.orchestrator.retrieval.chunks import Chunk
from serving.orchestrator.retrieval.document import Document
from serving.orchestrator.retrieval.index_sqlite import SqliteIndex
from serving.orchestrator.retrieval.passages import EmbeddedPassage, Passage
from serving.orchestrator.retrieval.vector_store import StoreFile, VectorStore, new_store_id
from serving.sessions.conversations.conversations import Conversations
from serving.sessions.conversations.records import Owner
from serving.sessions.conversations.sqlite_store import SqliteConversationStore
from serving.sessions.generation_log_sqlite import SqliteGenerationLog
from serving.sessions.logged_generation import Admitted, encode_admitted
from serving.settings.containers import ContainersConfig

DEPLOYMENT = """
name = "m"
[model]
checkpoint = "."
[conversations]
path = "conversations.sqlite"
[memory]
path = "memory.sqlite"
[files]
folder = "files"
[embeddings]
checkpoint = "encoder"
name = "e"
[retrieval]
folder = "stores"
[streams]
log = "sqlite"
path = "streams.sqlite"
[moderation]
review = "review.sqlite"
[moderation.judges.rules]
kind = "rules"
[events]
outbox = "events.sqlite"
"""


class Planted:
    """Over one folder, opened as a server has it: what is written stands in write-ahead logs for as long."""

    def __init__(self, folder: Path, opened: AsyncExitStack) -> None:
        self.folder = folder
        self.conversations = Conversations(SqliteConversationStore(folder / "conversations.sqlite"))
        opened.push_async_callback(self.conversations.store.close)
        self.memory = MemoryStore(folder / "memory.sqlite")
        opened.callback(self.memory.close)
        self.files = FileStore(FilesConfig(), folder / "files")
        self.batches = BatchStore(self.files.facts, 16)
        self.containers = ContainerStore(self.files, folder / "files", ContainersConfig(), time.time)
        opened.callback(self.files.facts.close)
        limits = CatalogLimits(tenant_stores=9, store_files=9, tenant_bytes=1 << 30)
        self.catalog = Catalog(folder / "stores", limits, time.time)
        opened.callback(self.catalog.close)
        self.index = SqliteIndex(folder / "stores")
        self.streams = SqliteGenerationLog(folder / "streams.sqlite")
        opened.push_async_callback(self.streams.close)
        self.review = ReviewQueue(folder / "review.sqlite", ModerationMetrics(CollectorRegistry()))
        opened.callback(self.review.close)
        self.outbox = Outbox(folder / "events.sqlite")
        reader = sqlite3.connect(folder / "events.sqlite")  # the outbox itself opens its file for each call
        reader.execute("SELECT count(*) FROM events").fetchall()
        opened.callback(reader.close)

    async def plant(self, tenant: str, user: str, word: str) -> None:
        owner = Owner(tenant, user)
        item = {"id": "msg_1", "type": "message", "content": f"{word} said"}
        await self.conversations.create_conversation(owner, {"topic": word}, [item] * 30, 1)
        for number in range(20):
            exchange, person = Exchange(f"{word} {number}", f"what of {word}"), Person(tenant, user)
            await self.memory.add(person, exchange, 100, await self.memory.life(person))
        file = await self.files.add(tenant, f"{word}.txt", "batch", [f"{word} in a file".encode()])
        by = ContainerOwner(tenant=tenant, user=user)
        container = await self.containers.create(by, f"{word} programs")
        await self.containers.keep(by, container.id, {f"{word}.csv": f"{word} written".encode()})
        principal = msgspec.msgpack.encode(Principal(key_id="k", tenant=tenant, tier="default"))
        await self._plant_batch(tenant, word, file.id, principal)
        await self._plant_store(tenant, word, file.id, principal)
        await self._plant_stream(tenant, word)
        finding = Finding(category="violence", score=1.0)
        await self.review.add(Subject(tenant, f"{tenant}-{user}", user), "0", "input", finding, f"{word} to look at")
        data = {"tenant": tenant, "user": user, "text": f"{word} told"}
        event = json.dumps({"type": "t", "data": data}).encode()
        self.outbox.append(
            [Entry(id=f"{tenant}-{user}-{n}", time=time.time(), type="t", event=event) for n in range(9)]
        )

    async def _plant_batch(self, tenant: str, word: str, file_id: str, principal: bytes) -> None:
        batch = Batch(
            id=f"batch_{tenant}_{word}",
            tenant=tenant,
            principal=principal,
            endpoint="/v1/completions",
            input_file_id=file_id,
            created_at=1,
            expires_at=2,
            metadata={"of": word},
        )
        await self.batches.add(batch)
        for line in range(20):
            await self.batches.record(batch.id, line, f"{word} answered".encode(), good=True)

    async def _plant_store(self, tenant: str, word: str, file_id: str, principal: bytes) -> None:
        now = int(time.time())
        store = VectorStore(
            id=new_store_id(), tenant=tenant, encoder="e", created_at=now, last_active_at=now, name=f"{word} store"
        )
        await self.catalog.add_store(store)
        attached = StoreFile(
            store_id=store.id,
            file_id=file_id,
            filename=f"{word}.txt",
            tenant=tenant,
            principal=principal,
            encoder="e",
            created_at=now,
            usage_bytes=100,
        )
        await self.catalog.attach([attached])
        text = f"{word} in a passage"
        await self.index.put_document(store.id, file_id, Document(text, (0,)))
        passage = Passage(Chunk(0, len(text), text), ((0, len(text)),))
        await self.index.add(store.id, file_id, 0, [EmbeddedPassage(passage, np.ones((1, 4), np.float32))])

    async def _plant_stream(self, tenant: str, word: str) -> None:
        name = f"stream-{tenant}-{word}"
        admitted = Admitted(
            stream_id=name,
            protocol="chat",
            request_id="r",
            body=f"{word} asked".encode(),
            created=1,
            prompts=(),
            owner=f"{len(tenant)}:{tenant}:k",
        )
        await self.streams.create(name, encode_admitted(admitted))
        await self.streams.append(name, 0, [f"{word} token".encode()] * 50, ended=True)

    def found(self, word: str) -> Mapping[str, int]:
        """How often the word stands in each file of the folder, its name included."""
        counts = {
            str(path.relative_to(self.folder)): path.read_bytes().count(word.encode()) + path.name.count(word)
            for path in sorted(self.folder.rglob("*"))
            if path.is_file()
        }
        return {name: count for name, count in counts.items() if count}
