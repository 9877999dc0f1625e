"""What is searched for, and how the answers are ranked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from serving.errors import RequestError, UnsupportedError
from serving.orchestrator.retrieval.filters import Filter, parse_filter

RANKERS = ("auto", "default-2024-11-15", "none")
DEFAULT_RESULTS = 10
_NAMES = ("ranker", "score_threshold", "hybrid_search")
_WEIGHTS = ("embedding_weight", "text_weight")


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    texts: Sequence[str]  # one or several; each makes rankings of its own
    filter: Filter | None = None
    limit: int = DEFAULT_RESULTS
    vector_weight: float = 1.0  # of the ranking by vectors among the two
    text_weight: float = 1.0
    least_score: float = 0.0


def parse_query(
    texts: Sequence[str], *, filters: object = None, limit: int = DEFAULT_RESULTS, ranking: object = None
) -> Query:
    """`filters` and `ranking` in OpenAI's form, as JSON was read. Raises RequestError, which names what is wrong."""
    options = {} if ranking is None else _members(ranking, _NAMES, "ranking_options")
    ranker, hybrid = options.get("ranker"), options.get("hybrid_search")
    if ranker is not None and ranker not in RANKERS:
        raise _wrong("ranking_options.ranker", f"must be {', '.join(RANKERS)}")
    if ranker == "none" and hybrid is not None:
        raise UnsupportedError(
            'ranking_options.ranker "none" is the order by vectors alone: leave hybrid_search out',
            param="ranking_options.hybrid_search",
        )
    weights = (1.0, 0.0 if ranker == "none" else 1.0)
    if hybrid is not None:
        path = "ranking_options.hybrid_search"
        given = _members(hybrid, _WEIGHTS, path)
        weights = tuple(_number(given.get(name), f"{path}.{name}", 1000.0) for name in _WEIGHTS)
        if not any(weights):
            raise _wrong(path, "must have a weight above 0")
    least = options.get("score_threshold")
    return Query(
        texts=texts,
        filter=None if filters is None else parse_filter(filters),
        limit=limit,
        vector_weight=weights[0],
        text_weight=weights[1],
        least_score=0.0 if least is None else _number(least, "ranking_options.score_threshold", 1.0),
    )


def _members(given: object, names: Sequence[str], param: str) -> Mapping[str, Any]:
    try:
        table = msgspec.convert(given, dict[str, Any])
    except msgspec.ValidationError:
        raise _wrong(param, "must be an object") from None
    for name in table:
        if name not in names:
            raise RequestError(
                f"{param}.{name[:64]} is not known; {', '.join(names)} are", param=param, code="unknown_parameter"
            )
    return table


def _number(value: object, param: str, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        raise _wrong(param, f"must be a number in 0 .. {most:g}")
    return float(value)


def _wrong(param: str, what: str) -> RequestError:
    return RequestError(f"{param} {what}", param=param, code="invalid_value")
