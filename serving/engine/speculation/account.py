"""What guessing has gained and lost, plan by plan. The rule is `policies/loss_budget.py`."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from serving.engine.policies.loss_budget import settled

_KEPT = 8  # measurements


@dataclass(slots=True)
class _Plan:
    at: float
    streams: int
    delivered: int  # tokens
    guesses: bool
    risked: bool  # it has guesses, or had to wait because of some
    read: int  # tokens of texts that a draft model reads in it, which it has missed


class Account:
    """In seconds. `plain(n)` is what a token of each of n streams takes without guesses, where that is known."""

    def __init__(self, plain: Callable[[int], float | None]) -> None:
        self.balance = 0.0
        self._plain = plain
        self._last: _Plan | None = None
        self._put_off = False
        self._reading: deque[float] = deque(maxlen=_KEPT)

    def put_off(self) -> None:
        """The next plan waits for the tokens of the one before it."""
        self._put_off = True

    def accept(self, count: int) -> None:
        """So many guesses of the last plan were right."""
        if self._last is not None:
            self._last.delivered += count

    def issue(self, now: float, streams: int, *, rounds: int, guesses: bool, read: int) -> None:
        """A plan in which all decode."""
        self._settle(now)
        alone = self._put_off or (self._last is not None and self._last.guesses)
        self._last = _Plan(now, streams, streams * rounds, guesses, guesses or alone or read > 0, read)
        self._put_off = False

    def interrupt(self, now: float | None = None) -> None:
        """Another kind of plan comes between; None: or nothing at all."""
        if now is not None:
            self._settle(now)
        self._last, self._put_off = None, False

    def seconds_to_read(self, otherwise: float) -> float:
        """Of a token of a text that a draft model has missed; `otherwise` where that was not measured."""
        return median(self._reading) if self._reading else otherwise

    def _settle(self, now: float) -> None:
        last = self._last
        step = None if last is None else self._plain(last.streams)
        if last is None or step is None:
            return
        took = now - last.at
        worth = step * last.delivered / last.streams
        risked = last.risked or self._put_off
        self.balance = settled(self.balance, took=took, worth=worth, risked=risked, step=step)
        if last.read:
            self._reading.append(max(took - step, 0.0) / last.read)
