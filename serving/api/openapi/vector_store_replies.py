"""What vector stores answer."""

from collections.abc import Mapping

from serving.api.openapi.shapes import COUNT, PAGE, TEXT, Schema, list_of, object_of, ref, word

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
    "VectorStores": object_of(**PAGE, data=list_of(ref("VectorStore"))),
    "VectorStoreEnd": object_of(id=TEXT, object=word("vector_store.deleted"), deleted={"const": True}),
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
    "VectorStoreFiles": object_of(**PAGE, data=list_of(ref("VectorStoreFile"))),
    "VectorStoreFileEnd": object_of(id=TEXT, object=word("vector_store.file.deleted"), deleted={"const": True}),
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
