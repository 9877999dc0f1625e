"""Lists, page by page: what their queries ask for, and how a page looks."""

from collections.abc import Callable, Sequence
from typing import Any

from starlette.requests import Request

from serving.errors import NotFoundError, RequestError

USUAL_LIMIT = 20  # where a client does not say
MOST_LISTED = 100  # at a time, where a list does not say


def limit_of(request: Request, *, default: int = USUAL_LIMIT, most: int = MOST_LISTED) -> int:
    """Raises RequestError."""
    given = request.query_params.get("limit", str(default))
    if not (given.isascii() and given.isdecimal() and len(given) <= 6 and 1 <= int(given) <= most):
        raise RequestError(f"limit must be an integer in 1 .. {most}", param="limit", code="invalid_value")
    return int(given)


def is_ascending(request: Request) -> bool:
    """By their creation; the newest are first where a client does not say. Raises RequestError."""
    order = request.query_params.get("order", "desc")
    if order not in ("asc", "desc"):
        raise RequestError('order must be "asc" or "desc"', param="order", code="invalid_value")
    return order == "asc"


def page(data: Sequence[dict[str, Any]], *, more: bool) -> dict[str, Any]:
    first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    return {"object": "list", "data": data, "first_id": first, "last_id": last, "has_more": more}


def page_of(
    request: Request, members: Sequence[dict[str, Any]], missing: Callable[[str], NotFoundError]
) -> dict[str, Any]:
    """The page that is asked for, of all `members`, which stand oldest first. Raises RequestError, and what is
    `missing` for an `after` that is none of them."""
    limit = limit_of(request)
    ordered = members if is_ascending(request) else members[::-1]
    after = request.query_params.get("after")
    if after is not None:
        places = [place for place, member in enumerate(ordered) if member["id"] == after]
        if not places:
            raise missing(after)
        ordered = ordered[places[0] + 1 :]
    return page(ordered[:limit], more=len(ordered) > limit)
