"""How evenly the tokens of a text fall on a model's experts: over several devices, the fullest sets the pace."""

import statistics
from dataclasses import dataclass, field

import numpy as np


@dataclass(slots=True)
class ExpertLoad:
    """Gathers the load of each layer in each step."""

    _fullest: list[float] = field(default_factory=list)  # tokens of the fullest expert over the mean
    _idle: list[float] = field(default_factory=list)  # share of the experts that had none

    def add(self, load: np.ndarray) -> None:
        """load [E]: the tokens of each expert. A step without tokens says nothing."""
        if load.sum():
            self._fullest.append(float(load.max() / load.mean()))
            self._idle.append(float((load == 0).mean()))

    def figures(self) -> dict[str, float]:
        """Empty where no expert was seen at work."""
        if not self._fullest:
            return {}
        return {
            "fullest_over_mean": statistics.median(self._fullest),
            "fullest_over_mean_at_worst": max(self._fullest),
            "idle_share": statistics.median(self._idle),
        }
