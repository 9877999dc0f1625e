"""What vector stores answer."""

from collections.abc import Mapping

from serving.api.openapi.shapes import COUNT, TEXT, Schema, end_of, list_of, object_of, page_of, word

_COUNTS = object_of(in_progress=COUNT, completed=COUNT, cancelled=COUNT, failed=COUNT, total=COUNT)
_PIECE = object_of(type=word("text"), text=TEXT)
_ATTRIBUTES: Schema = {"type": "object"}
_NO_MORE = {"has_more": {"const": False}, "next_page": {"type": "null"}}
_CITATION = object_of(
    file_id=TEXT, filename=TEXT, quote=TEXT, start=COUNT, end=COUNT, page={"type": ["integer", "null"], "minimum": 1}
)

VECTOR_STORE_REPLIES: Mapping[str, Schema] = {
    "VectorStore": object_of(
        id=TEXT,
        object=word("vector_store"),
        created_at=COUNT,
        last_active_at=COUNT,
        name=TEXT,
        status=word("expired", "in_progress", "completed"),
        usage_bytes=COUNT,
        file_counts=_COUNTS,
        metadata={"type": "object"},
    ),
    "VectorStores": page_of("VectorStore"),
    "VectorStoreEnd": end_of("vector_store.deleted"),
    "VectorStoreFile": object_of(
        id=TEXT,
        object=word("vector_store.file"),
        created_at=COUNT,
        vector_store_id=TEXT,
        status=word("in_progress", "completed", "cancelled", "failed"),
        usage_bytes=COUNT,
        attributes=_ATTRIBUTES,
        chunking_strategy=object_of(type=word("static")),
        progress=object_of(chunks=COUNT, of={"type": ["integer", "null"]}),
    ),
    "VectorStoreFiles": page_of("VectorStoreFile"),
    "VectorStoreFileEnd": end_of("vector_store.file.deleted"),
    "FileText": object_of(object=word("vector_store.file_content.page"), data=list_of(_PIECE), **_NO_MORE),
    "FileBatch": object_of(
        id=TEXT,
        object=word("vector_store.files_batch"),
        created_at=COUNT,
        vector_store_id=TEXT,
        status=word("in_progress", "completed", "cancelled"),
        file_counts=_COUNTS,
    ),
    "SearchResults": object_of(
        object=word("vector_store.search_results.page"),
        search_query=list_of(TEXT),
        data=list_of(
            object_of(
                file_id=TEXT,
                filename=TEXT,
                score={"type": "number", "minimum": 0, "maximum": 1},
                attributes=_ATTRIBUTES,
                content=list_of(_PIECE),
                citation=_CITATION,
            )
        ),
        **_NO_MORE,
    ),
}
