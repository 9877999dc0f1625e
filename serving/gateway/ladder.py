"""What the server gives up, and in which order, when it has more to do than it can.

    0 normal         everything is served
    1 shed_batch     batch requests are refused: they can come later
    2 cap_output     and what is admitted gets at most so many tokens of output, and is told
    3 fallback       and new requests go to the smaller model that stands in, where the model has one
    4 refuse         and requests whose class would wait beyond its bound are refused (`Capacity` decides for each)

The signal is the load: the predicted wait of a standard request over the longest with which one is let in. A rung is
left only well below where it was entered, so that the server does not tremble on it.
"""

import logging
from collections.abc import Callable
from enum import IntEnum

from serving.access import AdmissionConfig
from serving.observability.logs import log_event

_LEAVE_BELOW = 0.7  # of the load at which a rung is entered

logger = logging.getLogger(__name__)


class Rung(IntEnum):
    NORMAL = 0
    SHED_BATCH = 1
    CAP_OUTPUT = 2
    FALLBACK = 3
    REFUSE = 4


class Ladder:
    """Of one model. Where no other stands in for it there is no rung `fallback`."""

    def __init__(
        self, config: AdmissionConfig, on_change: Callable[[Rung], None], *, can_fall_back: bool = False
    ) -> None:
        self._bounds = {
            Rung.NORMAL: 0.0,
            Rung.SHED_BATCH: config.shed_batch_at,
            Rung.CAP_OUTPUT: config.cap_output_at,
            **({Rung.FALLBACK: config.fallback_at} if can_fall_back else {}),
            Rung.REFUSE: 1.0,
        }
        self._on_change = on_change
        self.rung = Rung.NORMAL

    def see(self, load: float) -> Rung:
        """The rung at this load."""
        entered = [step for step, bound in self._bounds.items() if load >= bound]
        kept = [step for step, bound in self._bounds.items() if step <= self.rung and load >= bound * _LEAVE_BELOW]
        rung = max(Rung.NORMAL, *entered, *kept)
        if rung != self.rung:
            level = logging.WARNING if rung > self.rung else logging.INFO
            log_event(logger, "degradation", level=level, rung=rung.name.lower(), load=round(min(load, 1e6), 2))
            self.rung = rung
            self._on_change(rung)
        return rung
