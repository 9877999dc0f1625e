"""The operations of containers."""

from collections.abc import Mapping

from serving.api.containers.body import MAX_NAME_CHARS, ContainerBody
from serving.api.openapi.operation import Operation, Query
from serving.api.openapi.queries import AFTER, ORDER, limit

_ALL = "/v1/containers"
_ONE = f"{_ALL}/{{container_id}}"
_FILE = f"{_ONE}/files/{{file_id}}"
_PART = (limit(), ORDER, AFTER)
_NAME = Query(name="name", schema={"type": "string", "maxLength": MAX_NAME_CHARS}, says="Only containers of this name.")
_UPLOAD = {
    "type": "object",
    "properties": {"file": {"type": "string", "format": "binary"}},
    "required": ["file"],
    "additionalProperties": False,
}

CONTAINER_OPERATIONS: Mapping[tuple[str, str], Operation] = {
    ("POST", _ALL): Operation(
        says="A folder that programs leave their files in.",
        body=ContainerBody,
        example={"name": "sums", "expires_after": {"anchor": "last_active_at", "minutes": 20}},
        reply="Container",
    ),
    ("GET", _ALL): Operation(says="The tenant's containers, page by page.", reply="Containers", query=(*_PART, _NAME)),
    ("GET", _ONE): Operation(says="What is known of a container.", reply="Container"),
    ("DELETE", _ONE): Operation(says="Deletes a container and its files.", reply="ContainerEnd"),
    ("POST", f"{_ONE}/files"): Operation(
        says="Puts a file into a container; or as JSON, {file_id}, a copy of one that /v1/files has.",
        form=_UPLOAD,
        reply="ContainerFile",
    ),
    ("GET", f"{_ONE}/files"): Operation(says="A container's files, page by page.", reply="ContainerFiles", query=_PART),
    ("GET", _FILE): Operation(says="What is known of one of its files.", reply="ContainerFile"),
    ("DELETE", _FILE): Operation(says="Deletes one of its files.", reply="ContainerFileEnd"),
    ("GET", f"{_FILE}/content"): Operation(says="A file's bytes.", media="application/octet-stream"),
}
