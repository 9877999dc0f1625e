from typing import Any

import pytest

from serving.errors import RequestError
from serving.orchestrator.retrieval.filters import DEEPEST, parse_filter

WOOL = {"topic": "wool", "year": 2020, "checked": True}


def compare(kind: str, key: str, value: Any) -> dict[str, Any]:
    return {"type": kind, "key": key, "value": value}


@pytest.mark.parametrize(
    ("given", "holds"),
    [
        (compare("eq", "topic", "wool"), True),
        (compare("eq", "year", 2020.0), True),
        (compare("eq", "checked", 1), False),
        (compare("eq", "missing", "x"), False),
        (compare("ne", "topic", "silk"), True),
        (compare("ne", "missing", "x"), True),
        (compare("gt", "year", 2019), True),
        (compare("gte", "year", 2020), True),
        (compare("lt", "year", 2020), False),
        (compare("lte", "year", 2020.5), True),
        (compare("gt", "topic", "silk"), True),
        (compare("gt", "topic", 5), False),
        (compare("lt", "checked", 5), False),
        (compare("lt", "missing", 5), False),
        (compare("in", "topic", ["silk", "wool"]), True),
        (compare("in", "year", []), False),
        (compare("nin", "topic", ["silk"]), True),
        (compare("nin", "missing", ["silk"]), True),
        ({"type": "and", "filters": [compare("eq", "topic", "wool"), compare("gt", "year", 2030)]}, False),
        ({"type": "or", "filters": [compare("eq", "topic", "wool"), compare("gt", "year", 2030)]}, True),
    ],
)
def test_a_filter_holds_of_attributes(given: dict[str, Any], holds: bool) -> None:
    assert parse_filter(given).holds(WOOL) is holds


def _deep(levels: int) -> dict[str, Any]:
    return compare("eq", "a", 1) if levels == 0 else {"type": "and", "filters": [_deep(levels - 1)]}


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ([], "filters"),
        ({"type": "like", "key": "a", "value": 1}, "filters.type"),
        ({"type": "eq", "key": "a"}, "filters.value"),
        ({"type": "eq", "key": 3, "value": 1}, "filters.key"),
        (compare("eq", "a", None), "filters.value"),
        (compare("eq", "a", [1]), "filters.value"),
        (compare("in", "a", "b"), "filters.value"),
        ({**compare("eq", "a", 1), "more": 1}, "filters"),
        ({"type": "or", "filters": []}, "filters.filters"),
        ({"type": "or", "filters": [compare("eq", "a", 1), compare("eq", "a", None)]}, "filters.filters[1].value"),
        (_deep(DEEPEST), f"filters{'.filters[0]' * (DEEPEST - 1)}"),
        ({"type": "or", "filters": [compare("eq", "a", 1)] * 101}, "filters"),
    ],
)
def test_what_is_no_filter_is_refused_where_it_is_wrong(given: Any, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_filter(given)
    assert caught.value.param == param
