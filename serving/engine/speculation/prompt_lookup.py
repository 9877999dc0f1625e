"""Guesses from the text itself: what followed the last time that it said the same (prompt lookup).

The idea is Saxena's (prompt lookup decoding, 2023). Answers that quote, extend or correct their prompt repeat it.
"""

from collections.abc import Sequence

WINDOW = 4096  # tokens before the first question that are looked at: a long prompt must not hold up a step


class PromptLookup:
    """Of one stream, whose tokens only grow."""

    __slots__ = ("_followed", "_longest", "_read", "_shortest")

    def __init__(self, shortest: int, longest: int) -> None:
        """Runs of `longest` tokens are looked for first, then shorter ones, down to `shortest`."""
        self._shortest = shortest
        self._longest = longest
        self._followed: dict[tuple[int, ...], int] = {}  # a run -> the position after its latest occurrence
        self._read = -1  # runs that end at or before this position are known

    def guess(self, tokens: Sequence[int], most: int) -> tuple[int, ...]:
        """Up to `most` tokens that may follow; none where the last ones occur nowhere before."""
        self._read_on(tokens)
        for size in range(min(self._longest, len(tokens) - 1), self._shortest - 1, -1):
            at = self._followed.get(tuple(tokens[-size:]))
            if at is not None:
                guesses = list(tokens[at : at + most])
                while len(guesses) < most:  # the text has caught up with itself: it goes round
                    guesses.append(guesses[len(guesses) - (len(tokens) - at)])
                return tuple(guesses)
        return ()

    def _read_on(self, tokens: Sequence[int]) -> None:
        """Runs that something follows: the last one is only asked for."""
        if self._read < 0:
            self._read = max(0, len(tokens) - WINDOW)
        for end in range(self._read + 1, len(tokens)):
            for size in range(self._shortest, min(self._longest, end) + 1):
                self._followed[tuple(tokens[end - size : end])] = end
        self._read = max(self._read, len(tokens) - 1)
