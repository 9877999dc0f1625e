"""Query parameters that a path does not have are refused, as unknown parameters of a body are: `?ordr=asc` would else
be answered with another list than was asked for."""

import difflib
from collections.abc import Mapping, Sequence

from starlette.datastructures import QueryParams
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from serving.api.openapi.operation import Query
from serving.api.openapi.operations import OPERATIONS
from serving.errors import RequestError

_MANY = "[]"  # behind the name of a list, as some clients write it


def with_known_queries(routes: Sequence[BaseRoute]) -> Sequence[BaseRoute]:
    """The routes, of which those that have query parameters take no others. Elsewhere a query changes nothing, and
    clients send some of their own (`?beta=true`): that is let be."""
    for route in routes:
        if isinstance(route, Route):
            known = {
                method: operation.query
                for method in route.methods or ()
                if (operation := OPERATIONS.get((method, route.path))) is not None and operation.query
            }
            if known:
                route.app = _KnownQuery(route.app, known)
    return routes


class _KnownQuery:
    def __init__(self, app: ASGIApp, known: Mapping[str, Sequence[Query]]) -> None:
        self._app = app
        self._known = known  # by method

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        _check(QueryParams(scope["query_string"]), self._known.get(scope["method"], ()))
        await self._app(scope, receive, send)


def _check(given: QueryParams, known: Sequence[Query]) -> None:
    """Raises RequestError."""
    lists = {query.name: query.schema.get("type") == "array" for query in known}
    seen: set[str] = set()
    for sent, _ in given.multi_items() if known else ():
        name = sent.removesuffix(_MANY) if lists.get(sent.removesuffix(_MANY)) else sent
        if name not in lists:
            close = difflib.get_close_matches(name[:64], lists, n=1)
            hint = f"did you mean {close[0]}?" if close else f"it has {', '.join(lists)}"
            raise RequestError(
                f"{name[:64]!r} is not a query parameter of this path; {hint}",
                param=name[:64],
                code="unknown_parameter",
            )
        if name in seen and not lists[name]:
            raise RequestError(f"{name} is given more than once", param=name, code="duplicate_key")
        seen.add(name)
