"""The operations of vector stores."""

from collections.abc import Mapping

from serving.api.openapi.operation import Operation, Query
from serving.api.openapi.queries import AFTER, BEFORE, ORDER, limit
from serving.api.vector_stores.bodies import (
    FileAttributesBody,
    FileBatchBody,
    SearchBody,
    StoreBody,
    StoreFileBody,
    StoreUpdateBody,
)

_STORES = "/v1/vector_stores"
_STORE = f"{_STORES}/{{vector_store_id}}"
_FILE = f"{_STORE}/files/{{file_id}}"
_BATCH = f"{_STORE}/file_batches/{{batch_id}}"

_PART = (limit(), ORDER, AFTER, BEFORE)
_FILES_PART = (
    *_PART,
    Query(
        name="filter",
        schema={"enum": ["in_progress", "completed", "cancelled", "failed"]},
        says="Only files of this status.",
    ),
)

VECTOR_STORE_OPERATIONS: Mapping[tuple[str, str], Operation] = {
    ("POST", _STORES): Operation(
        says="A new store, of files that are there.", body=StoreBody, example={"name": "notes"}, reply="VectorStore"
    ),
    ("GET", _STORES): Operation(says="The tenant's stores, page by page.", reply="VectorStores", query=_PART),
    ("GET", _STORE): Operation(says="A store, and how far its files are.", reply="VectorStore"),
    ("POST", _STORE): Operation(says="Changes a store.", body=StoreUpdateBody, reply="VectorStore"),
    ("DELETE", _STORE): Operation(says="Deletes a store, and no file.", reply="VectorStoreEnd"),
    ("POST", f"{_STORE}/search"): Operation(
        says="The passages that answer a query best.", body=SearchBody, reply="SearchResults"
    ),
    ("POST", f"{_STORE}/files"): Operation(
        says="Puts a file into a store.", body=StoreFileBody, reply="VectorStoreFile"
    ),
    ("GET", f"{_STORE}/files"): Operation(
        says="A store's files, page by page.", reply="VectorStoreFiles", query=_FILES_PART
    ),
    ("GET", _FILE): Operation(says="How far a file of a store is.", reply="VectorStoreFile"),
    ("POST", _FILE): Operation(says="Changes a file's attributes.", body=FileAttributesBody, reply="VectorStoreFile"),
    ("DELETE", _FILE): Operation(says="Takes a file out of a store.", reply="VectorStoreFileEnd"),
    ("GET", f"{_FILE}/content"): Operation(says="A file's text, as it was read.", reply="FileText"),
    ("POST", f"{_STORE}/file_batches"): Operation(
        says="Puts several files into a store.", body=FileBatchBody, reply="FileBatch"
    ),
    ("GET", _BATCH): Operation(says="How far files that came together are.", reply="FileBatch"),
    ("POST", f"{_BATCH}/cancel"): Operation(says="Leaves out what is not yet in the store.", reply="FileBatch"),
    ("GET", f"{_BATCH}/files"): Operation(
        says="Files that came together.", reply="VectorStoreFiles", query=_FILES_PART
    ),
}
