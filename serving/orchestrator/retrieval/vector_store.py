"""A vector store, its files and their batches, and how each is shown: OpenAI's shapes."""

import secrets
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from serving.orchestrator.retrieval.chunks import ChunkSizes
from serving.orchestrator.retrieval.filters import Value

FileStatus = Literal["in_progress", "completed", "cancelled", "failed"]
FILE_STATUSES: tuple[FileStatus, ...] = ("in_progress", "completed", "cancelled", "failed")
DAY = 86400  # seconds
MOST_TOKENS, OVERLAP = 1024, 128  # of a chunk, where the client says nothing

Counts = Mapping[str, int]  # files by their status


class VectorStore(msgspec.Struct, frozen=True, kw_only=True):
    """Times are seconds since 1970."""

    id: str
    tenant: str
    encoder: str  # the model id of what its vectors are made by
    created_at: int
    last_active_at: int
    name: str = ""
    description: str | None = None
    metadata: dict[str, str] = {}
    expires_days: int | None = None  # after it was last active

    @property
    def expires_at(self) -> int | None:
        return None if self.expires_days is None else self.last_active_at + self.expires_days * DAY

    def is_expired(self, now: float) -> bool:
        return self.expires_at is not None and now >= self.expires_at

    def shown(self, counts: Counts, usage_bytes: int, now: float) -> dict[str, Any]:
        busy = "in_progress" if counts.get("in_progress") else "completed"
        days = self.expires_days
        return {
            "id": self.id,
            "object": "vector_store",
            "created_at": self.created_at,
            "name": self.name,
            "description": self.description,
            "usage_bytes": usage_bytes,
            "file_counts": shown_counts(counts),
            "status": "expired" if self.is_expired(now) else busy,
            "expires_after": None if days is None else {"anchor": "last_active_at", "days": days},
            "expires_at": self.expires_at,
            "last_active_at": self.last_active_at,
            "metadata": self.metadata,
        }


class StoreFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file in a store: what is known of it, and how far its ingest is."""

    store_id: str
    file_id: str
    filename: str
    tenant: str
    principal: bytes  # on whose account it is embedded, as msgpack
    encoder: str
    created_at: int
    batch_id: str | None = None
    attributes: dict[str, Value] = {}
    max_tokens: int = MOST_TOKENS
    overlap: int = OVERLAP
    status: FileStatus = "in_progress"
    usage_bytes: int = 0
    passages_done: int = 0
    passages: int | None = None  # None: it is not yet read
    tenant_bytes: int | None = None  # that all stores of its tenant may hold; None: as the deployment says
    error_code: str | None = None
    error_message: str = ""

    @property
    def sizes(self) -> ChunkSizes:
        return ChunkSizes(least=max(self.max_tokens // 2, self.overlap + 1), most=self.max_tokens, overlap=self.overlap)

    def shown(self) -> dict[str, Any]:
        error = None if self.error_code is None else {"code": self.error_code, "message": self.error_message}
        sizes = {"max_chunk_size_tokens": self.max_tokens, "chunk_overlap_tokens": self.overlap}
        return {
            "id": self.file_id,
            "object": "vector_store.file",
            "created_at": self.created_at,
            "vector_store_id": self.store_id,
            "status": self.status,
            "usage_bytes": self.usage_bytes,
            "last_error": error,
            "attributes": self.attributes,
            "chunking_strategy": {"type": "static", "static": sizes},
            "progress": {"chunks": self.passages_done, "of": self.passages},
        }


class FileBatch(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    store_id: str
    created_at: int
    is_cancelled: bool = False

    def shown(self, counts: Counts) -> dict[str, Any]:
        ended = "cancelled" if self.is_cancelled else "completed"
        return {
            "id": self.id,
            "object": "vector_store.files_batch",
            "created_at": self.created_at,
            "vector_store_id": self.store_id,
            "status": "in_progress" if counts.get("in_progress") else ended,
            "file_counts": shown_counts(counts),
        }


def new_store_id() -> str:
    return f"vs_{secrets.token_hex(16)}"


def new_batch_id() -> str:
    return f"vsfb_{secrets.token_hex(16)}"


def shown_counts(counts: Counts) -> dict[str, int]:
    return {**{status: counts.get(status, 0) for status in FILE_STATUSES}, "total": sum(counts.values())}
