"""What decoding takes with and without guesses, as measured from one plan to the next, the host's part included."""

from collections import deque
from dataclasses import dataclass
from statistics import median

_KEPT = 8  # measurements of a kind
_ENOUGH = 2  # to be believed
STALE_AFTER = 512  # plans; what was measured before them is not trusted

Kind = tuple[int, int]  # bucket of tokens, guesses of a sequence that the device makes (-1: a plan without guesses)
_PLAIN = -1


@dataclass(slots=True)
class _Last:
    """The plan before."""

    kind: Kind
    rounds: int
    at: float
    plain_run: int  # plans without guesses up to this one


class Pace:
    """`buckets`: the step sizes that are compiled, ascending; a step is padded to the next one."""

    def __init__(self, buckets: tuple[int, ...]) -> None:
        self._buckets = buckets
        self._measured: dict[Kind, deque[float]] = {}
        self._median: dict[Kind, float] = {}  # of those that are believed: asked for more often than measured
        self._measured_at: dict[Kind, int] = {}
        self._plans = 0
        self._last: _Last | None = None

    def issue(
        self, now: float, num_tokens: int, *, rounds: int = 1, made: int | None = None, waited: bool = False
    ) -> None:
        """A plan in which all sequences decode is issued: the one before it, if of that kind, took until now.

        `made` None: it has no guesses; else how many the device makes for a sequence. `waited`: for the tokens of the
        one before it, though it has no guesses.
        """
        self._plans += 1
        last, plain_run = self._last, 0
        if made is None:
            plain_run = 1 if last is None or waited else last.plain_run + 1
        # Plans without guesses overlap from the second one on, and until one with guesses waits for the last of them.
        if last is not None and (last.kind[1] != _PLAIN or plain_run > 2):
            self._measure(last.kind, (now - last.at) / last.rounds)
        self._last = _Last((self._bucket(num_tokens), _PLAIN if made is None else made), rounds, now, plain_run)

    def interrupt(self) -> None:
        """Another kind of plan comes between, or none: what the last one takes is not seen."""
        self._last = None

    def plain_seconds(self, num_tokens: int) -> float | None:
        """A token of each of so many sequences; None where that was not measured lately."""
        return self._seconds((self._bucket(num_tokens), _PLAIN))

    def guessed_seconds(self, num_tokens: int, made: int) -> float | None:
        """A step of so many tokens, guesses among them. Where that was not measured lately, the most that a smaller one
        takes, or one with fewer made; None where none was measured."""
        largest = self._bucket(num_tokens)
        exact = self._seconds((largest, made))
        if exact is not None:
            return exact
        smaller = (self._seconds(kind) for kind in self._median if kind[0] <= largest and 0 <= kind[1] <= made)
        return max((seconds for seconds in smaller if seconds is not None), default=None)

    def _bucket(self, num_tokens: int) -> int:
        return next(bucket for bucket in self._buckets if bucket >= num_tokens)

    def _measure(self, kind: Kind, seconds: float) -> None:
        measured = self._measured.setdefault(kind, deque(maxlen=_KEPT))
        measured.append(seconds)
        self._measured_at[kind] = self._plans
        if len(measured) >= _ENOUGH:
            self._median[kind] = median(measured)

    def _seconds(self, kind: Kind) -> float | None:
        seconds = self._median.get(kind)
        return None if seconds is None or self._plans - self._measured_at[kind] > STALE_AFTER else seconds
