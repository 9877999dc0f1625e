import numpy as np

from serving.quality.expert_load import ExpertLoad


def test_the_fullest_expert_is_set_against_the_mean_and_steps_without_tokens_say_nothing() -> None:
    load = ExpertLoad()
    assert load.figures() == {}
    for tokens in ([4, 4, 4, 4], [8, 4, 4, 0], [0, 0, 0, 0], [16, 0, 0, 0]):
        load.add(np.array(tokens))
    assert load.figures() == {"fullest_over_mean": 2.0, "fullest_over_mean_at_worst": 4.0, "idle_share": 0.25}
