from serving.orchestrator.retrieval.fusion import fused


def test_what_two_rankings_have_comes_before_what_one_has() -> None:
    assert fused([(1.0, [1, 2, 3]), (1.0, [4, 2, 5])]) == [2, 1, 4, 3, 5]


def test_weights_say_how_much_a_ranking_counts() -> None:
    assert fused([(1.0, [1, 2]), (3.0, [3, 4])]) == [3, 4, 1, 2]
    assert fused([(0.0, [1, 2]), (1.0, [3])]) == [3]
    assert fused([]) == []
