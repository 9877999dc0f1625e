"""What predicted waits have been wrong by: a factor that nearly all of the recent ones would have kept to."""

import math

_MEMORY = 0.05  # weight of the newest
_DEVIATIONS = 2.5  # above the mean: some 99 in 100 lie below
_SHORTEST_SECONDS = 0.25  # a shorter prediction says nothing about the next
_FACTORS = (1.0, 4.0)


class PredictionError:
    """Learns in logarithms: to wait half as long as predicted is as wrong as to wait twice as long."""

    def __init__(self) -> None:
        self._mean = 0.0
        self._square = 0.0  # mean of the squared distance from it

    def learn(self, predicted: float, actual: float) -> None:
        """Seconds."""
        if not _SHORTEST_SECONDS <= predicted < math.inf:
            return
        distance = math.log(max(actual, 1e-3) / predicted) - self._mean
        self._mean += _MEMORY * distance
        self._square += _MEMORY * (distance * distance - self._square)

    def corrected(self, predicted: float) -> float:
        """The seconds that it will hardly take longer than. Never shorter than predicted: to be on the safe side."""
        low, high = _FACTORS
        factor = math.exp(self._mean + _DEVIATIONS * math.sqrt(self._square))
        return predicted * min(max(factor, low), high)
