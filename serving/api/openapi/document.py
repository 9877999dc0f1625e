"""Routes and operations as one OpenAPI document."""

import re
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from typing import Any

from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute

from serving.api.openapi.operation import EVENTS, JSON, Operation
from serving.api.openapi.operations import OPERATIONS
from serving.api.openapi.replies import REPLIES
from serving.api.openapi.schemas import REF, body_schemas

OPENAPI_VERSION = "3.1.0"
_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")
_FAILURES = {"4XX": "The request was refused.", "5XX": "The server cannot answer, now (503) or at all."}


def build_document(routes: Sequence[BaseRoute]) -> dict[str, Any]:
    """Raises KeyError for a route that no operation describes."""
    found = {key: OPERATIONS[key] for key in walked(routes)}
    paths: dict[str, Any] = {}
    for (method, path), operation in sorted(found.items(), key=lambda item: item[0][1]):
        paths.setdefault(_PARAMETER.sub(r"{\1}", path), {})[method.lower()] = _described(method, path, operation)
    bodies = [operation.body for operation in found.values() if operation.body is not None]
    return {
        "openapi": OPENAPI_VERSION,
        "info": {"title": "weft", "version": version("weft"), "description": "Open-weight models, served."},
        "paths": paths,
        "components": {
            "schemas": {**REPLIES, **body_schemas(bodies)},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "header": {"type": "apiKey", "in": "header", "name": "X-Api-Key"},
                "basic": {"type": "http", "scheme": "basic", "description": "The key is the password."},
            },
        },
        # The last one: a server without keys asks for none.
        "security": [{"bearer": []}, {"header": []}, {"basic": []}, {}],
    }


def walked(routes: Sequence[BaseRoute]) -> Iterator[tuple[str, str]]:
    """(method, path) of every route, as operations name them."""
    for route in routes:
        if isinstance(route, Mount):
            yield "GET", f"{route.path}/{{path}}"
        elif isinstance(route, WebSocketRoute):
            yield "GET", route.path
        else:
            assert isinstance(route, Route), f"{route!r} cannot be described"
            for method in (route.methods or {"GET"}) - {"HEAD"}:
                yield method, route.path


def _described(method: str, path: str, operation: Operation) -> dict[str, Any]:
    told: dict[str, Any] = {
        "operationId": _operation_id(method, path),
        "summary": operation.says,
        "parameters": [*_path_parameters(path), *_query_parameters(operation)],
        "responses": {str(operation.status): _reply(operation), **_failures(operation)},
    }
    if operation.is_open:
        told["security"] = []
    if operation.body is not None:
        content: dict[str, Any] = {"schema": {"$ref": REF.format(name=operation.body.__name__)}}
        if operation.example is not None:
            content["example"] = operation.example
        told["requestBody"] = {"required": True, "content": {JSON: content}}
    if operation.form is not None:
        told["requestBody"] = {"required": True, "content": {"multipart/form-data": {"schema": operation.form}}}
    return told


def _reply(operation: Operation) -> dict[str, Any]:
    reply: dict[str, Any] = {"description": operation.says}
    if operation.status != 200:
        return reply
    schema = {} if operation.reply is None else {"$ref": REF.format(name=operation.reply)}
    reply["content"] = {operation.media: {"schema": schema}}
    if operation.streams:
        reply["content"][EVENTS] = {"schema": {"type": "string"}}
    return reply


def _failures(operation: Operation) -> dict[str, Any]:
    schema = {"$ref": REF.format(name=operation.error)}
    return {status: {"description": says, "content": {JSON: {"schema": schema}}} for status, says in _FAILURES.items()}


def _path_parameters(path: str) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in _PARAMETER.findall(path)
    ]


def _query_parameters(operation: Operation) -> list[dict[str, Any]]:
    return [
        {"name": query.name, "in": "query", "required": False, "schema": query.schema, "description": query.says}
        for query in operation.query
    ]


def _operation_id(method: str, path: str) -> str:
    words = re.findall(r"[a-zA-Z]\w*", _PARAMETER.sub(r"by_\1", path))
    return "_".join([method.lower(), *words]) if words else f"{method.lower()}_page"
