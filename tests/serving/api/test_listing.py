"""Lists are told page by page, from either end."""

from typing import Any

import pytest
from starlette.requests import Request

from serving.api.listing import page, page_of
from serving.errors import NotFoundError, RequestError

MEMBERS = [{"id": name} for name in "abcde"]


def _request(query: str) -> Request:
    return Request({"type": "http", "query_string": query.encode()})


def _missing(after: str) -> NotFoundError:
    return NotFoundError(f"there is no {after}", param="after")


def _page(query: str) -> tuple[str, bool]:
    found: dict[str, Any] = page_of(_request(query), MEMBERS, _missing)
    assert (found["first_id"], found["last_id"]) == (found["data"][0]["id"], found["data"][-1]["id"])
    return "".join(member["id"] for member in found["data"]), found["has_more"]


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("limit=2", ("ed", True)),
        ("limit=2&after=d", ("cb", True)),
        ("limit=2&after=c", ("ba", False)),
        ("limit=3&order=asc", ("abc", True)),
        ("limit=3&order=asc&after=c", ("de", False)),
    ],
)
def test_a_page_begins_after_the_last_one_that_the_client_has(query: str, told: tuple[str, bool]) -> None:
    assert _page(query) == told


@pytest.mark.parametrize(
    ("query", "param"),
    [("limit=0", "limit"), ("limit=101", "limit"), ("limit=x", "limit"), ("limit=1&order=up", "order")],
)
def test_a_query_that_asks_for_no_page_is_refused_by_name(query: str, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        _page(query)
    assert caught.value.param == param


def test_a_place_that_is_none_of_them_is_not_the_beginning() -> None:
    with pytest.raises(NotFoundError, match="there is no x"):
        _page("limit=1&after=x")


def test_a_page_of_nothing_has_no_ends() -> None:
    assert page([], more=False) == {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}
