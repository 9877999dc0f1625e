"""What requests under /v1/vector_stores say."""

from typing import Annotated, Any, ClassVar, Literal

import msgspec

from serving.api.metadata import Metadata
from serving.api.typed_body import Body, Refusal
from serving.errors import RequestError
from serving.orchestrator.retrieval.filters import Value
from serving.orchestrator.retrieval.query import DEFAULT_RESULTS, Query, parse_query
from serving.orchestrator.retrieval.vector_store import MOST_TOKENS, OVERLAP

MAX_FILES = 2000  # of one batch; OpenAI's
MAX_QUERIES = 8
Meta = msgspec.Meta

Name = Annotated[str, Meta(max_length=256)]
Attributes = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)] | float | bool], Meta(max_length=16)
]
FileIds = Annotated[list[str], Meta(max_length=MAX_FILES)]


class ExpiresAfter(msgspec.Struct, forbid_unknown_fields=True):
    anchor: Literal["last_active_at"]
    days: Annotated[int, Meta(ge=1, le=365)]


class StaticSizes(msgspec.Struct, forbid_unknown_fields=True):
    max_chunk_size_tokens: Annotated[int, Meta(ge=100, le=4096)]
    chunk_overlap_tokens: Annotated[int, Meta(ge=0, le=2048)]


class StaticStrategy(msgspec.Struct, tag_field="type", tag="static", forbid_unknown_fields=True):
    static: StaticSizes


class AutoStrategy(msgspec.Struct, tag_field="type", tag="auto", forbid_unknown_fields=True):
    pass


Strategy = AutoStrategy | StaticStrategy


_STRATEGIES = ("auto", "static")


class StoreBody(Body, kw_only=True):
    words: ClassVar = {"expires_after.anchor": ("last_active_at",), "chunking_strategy.type": _STRATEGIES}

    name: Name | None = None
    description: Annotated[str, Meta(max_length=512)] | None = None
    file_ids: FileIds | None = None
    chunking_strategy: Strategy | None = None
    expires_after: ExpiresAfter | None = None
    metadata: Metadata | None = None

    def check_together(self) -> None:
        """Raises RequestError."""
        if self.chunking_strategy is not None and not self.file_ids:
            raise RequestError(
                "chunking_strategy is of the files in file_ids: send it with those, or with each file that comes later",
                param="chunking_strategy",
                code="invalid_value",
            )


class StoreUpdateBody(Body, kw_only=True):
    """What is left out stays; null takes away."""

    words: ClassVar = {"expires_after.anchor": ("last_active_at",)}

    name: Name | msgspec.UnsetType | None = msgspec.UNSET
    expires_after: ExpiresAfter | msgspec.UnsetType | None = msgspec.UNSET
    metadata: Metadata | msgspec.UnsetType | None = msgspec.UNSET


class StoreFileBody(Body, kw_only=True):
    words: ClassVar = {"chunking_strategy.type": _STRATEGIES}

    file_id: str
    attributes: Attributes | None = None
    chunking_strategy: Strategy | None = None


class FileAttributesBody(Body, kw_only=True):
    attributes: Attributes | None


class BatchFile(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    file_id: str
    attributes: Attributes | None = None
    chunking_strategy: Strategy | None = None


class FileBatchBody(Body, kw_only=True):
    words: ClassVar = {"chunking_strategy.type": _STRATEGIES, "files[].chunking_strategy.type": _STRATEGIES}

    file_ids: FileIds | None = None
    files: Annotated[list[BatchFile], Meta(max_length=MAX_FILES)] | None = None
    attributes: Attributes | None = None
    chunking_strategy: Strategy | None = None

    def listed(self) -> list[BatchFile]:
        """Raises RequestError."""
        if (self.file_ids is None) == (self.files is None):
            raise RequestError("one of file_ids and files is required", param="file_ids", code="invalid_value")
        if self.files is None:
            return [
                BatchFile(file_id=each, attributes=self.attributes, chunking_strategy=self.chunking_strategy)
                for each in dict.fromkeys(self.file_ids or ())
            ]
        for name in ("attributes", "chunking_strategy"):
            if getattr(self, name) is not None:
                raise RequestError(f"{name} belongs into each of files, where those are given", param=name)
        return list({each.file_id: each for each in self.files}.values())


class SearchBody(Body, kw_only=True):
    refused: ClassVar = {"rewrite_query": Refusal("queries are searched for as they are", neutral=(False,))}

    query: str | Annotated[list[str], Meta(min_length=1, max_length=MAX_QUERIES)]
    filters: dict[str, Any] | None = None
    max_num_results: Annotated[int, Meta(ge=1, le=50)] | None = None
    ranking_options: dict[str, Any] | None = None

    @property
    def texts(self) -> list[str]:
        return [self.query] if isinstance(self.query, str) else self.query

    def asked(self) -> Query:
        """Raises RequestError."""
        for at, text in enumerate(self.texts):
            if not text.strip():
                name = "query" if isinstance(self.query, str) else f"query[{at}]"
                raise RequestError(f"{name} is empty", param=name, code="invalid_value")
        return parse_query(
            self.texts,
            filters=self.filters,
            limit=self.max_num_results or DEFAULT_RESULTS,
            ranking=self.ranking_options,
        )


def sizes_of(strategy: Strategy | None) -> tuple[int, int]:
    """Tokens of a chunk at most, and of an overlap. Raises RequestError."""
    if not isinstance(strategy, StaticStrategy):
        return MOST_TOKENS, OVERLAP
    most, overlap = strategy.static.max_chunk_size_tokens, strategy.static.chunk_overlap_tokens
    if overlap > most // 2:
        raise RequestError(
            f"chunking_strategy.static.chunk_overlap_tokens is {overlap}: half of max_chunk_size_tokens is the most",
            param="chunking_strategy.static.chunk_overlap_tokens",
            code="invalid_value",
        )
    return most, overlap


def plain(attributes: Attributes | None) -> dict[str, Value]:
    return dict(attributes or {})
