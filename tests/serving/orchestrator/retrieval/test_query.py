from typing import Any

import pytest

from serving.errors import RequestError
from serving.orchestrator.retrieval.query import parse_query
from serving.orchestrator.retrieval.query_words import query_words


@pytest.mark.parametrize(
    ("ranking", "weights"),
    [
        (None, (1.0, 1.0)),
        ({"ranker": "auto"}, (1.0, 1.0)),
        ({"ranker": "none", "score_threshold": 0.5}, (1.0, 0.0)),
        ({"hybrid_search": {"embedding_weight": 0, "text_weight": 2}}, (0.0, 2.0)),
    ],
)
def test_ranking_options_are_weights(ranking: Any, weights: tuple[float, float]) -> None:
    query = parse_query(["a"], ranking=ranking)
    assert (query.vector_weight, query.text_weight) == weights


@pytest.mark.parametrize(
    ("ranking", "param"),
    [
        ([], "ranking_options"),
        ({"ranker": "best"}, "ranking_options.ranker"),
        ({"more": 1}, "ranking_options"),
        ({"score_threshold": 1.5}, "ranking_options.score_threshold"),
        ({"score_threshold": True}, "ranking_options.score_threshold"),
        ({"hybrid_search": {"embedding_weight": 0, "text_weight": 0}}, "ranking_options.hybrid_search"),
        ({"hybrid_search": {"embedding_weight": 1}}, "ranking_options.hybrid_search.text_weight"),
        ({"ranker": "none", "hybrid_search": {}}, "ranking_options.hybrid_search"),
    ],
)
def test_what_no_ranking_can_be_is_refused_by_name(ranking: Any, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_query(["a"], ranking=ranking)
    assert caught.value.param == param


def test_words_that_are_everywhere_go_unless_there_are_no_others() -> None:
    assert query_words("Who has the flying shuttle? The shuttle!") == ["flying", "shuttle"]
    assert query_words("to be or not to be") == ["to", "be", "or", "not"]
    assert len(query_words(" ".join(f"w{n}" for n in range(100)))) == 64
