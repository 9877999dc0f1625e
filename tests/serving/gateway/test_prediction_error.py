import random

from serving.gateway.prediction_error import PredictionError


def test_what_is_predicted_is_kept_by_nearly_all_however_the_rates_were_wrong() -> None:
    draw, error = random.Random(3), PredictionError()
    waits = [2.0 * draw.lognormvariate(0.3, 0.25) for _ in range(1000)]
    for wait in waits:
        error.learn(2.0, wait)
    kept = sum(2.0 * draw.lognormvariate(0.3, 0.25) <= error.corrected(2.0) for _ in range(1000))
    assert 970 <= kept <= 1000
    assert error.corrected(2.0) < 2.0 * 2.7


def test_a_prediction_is_never_made_shorter_nor_more_than_four_times_as_long() -> None:
    quick, slow = PredictionError(), PredictionError()
    for _ in range(500):
        quick.learn(2.0, 0.01)
        slow.learn(2.0, 1000.0)
        slow.learn(0.01, 1e-9)  # too short a prediction to learn from
    assert quick.corrected(3.0) == 3.0
    assert slow.corrected(3.0) == 12.0
