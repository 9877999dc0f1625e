"""What is known of one request's guesses: how often they were right, and where to look for the next ones."""

from collections.abc import Sequence
from typing import Protocol

_MEMORY = 0.9  # of what was seen a step earlier
_PRIOR_RATE, _PRIOR_WEIGHT = 0.7, 2.0  # before anything was seen; hopeful, so that it is tried
_FORGETS = 0.985  # of it, a plan: what was wrong at one place may be right at another


class Lookup(Protocol):
    """What finds guesses on the host."""

    def guess(self, tokens: Sequence[int], most: int) -> tuple[int, ...]:
        """Up to `most` tokens that may follow these."""
        ...


class Guessing:
    __slots__ = ("_looked_at", "_right", "lookup", "read")

    def __init__(self, lookup: Lookup | None) -> None:
        """`lookup` None: a draft model guesses, on the device."""
        self.read = 0  # positions whose K and V the draft model has in the pages that the sequence has now
        self.lookup = lookup
        self._right = 0.0
        self._looked_at = 0.0

    @property
    def rate(self) -> float:
        """The share of guesses that are right, of those that are looked at."""
        return (self._right + _PRIOR_RATE * _PRIOR_WEIGHT) / (self._looked_at + _PRIOR_WEIGHT)

    def observe(self, guesses: int, accepted: int) -> None:
        self._right = _MEMORY * self._right + accepted
        self._looked_at = _MEMORY * self._looked_at + min(accepted + 1, guesses)

    def pass_over(self) -> None:
        """A plan gave it no guesses: what was seen weighs less, so that it is tried again after a while."""
        self._right *= _FORGETS
        self._looked_at *= _FORGETS
