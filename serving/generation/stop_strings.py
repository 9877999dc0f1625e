"""Stop strings in a text that comes in chunks."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stopped:
    """`stop` was found at character `start` of the whole text."""

    stop: str
    start: int


class StopStrings:
    """Stop strings made ready to be looked for: an Aho-Corasick automaton, in which each character of a text costs
    amortised constant time. It does not change, so the choices of a request share it."""

    def __init__(self, stops: Sequence[str]) -> None:
        if any(not stop for stop in stops):
            raise ValueError("a stop string must not be empty")
        self._next: list[dict[str, int]] = [{}]  # state -> character -> state
        self._fail: list[int] = [0]  # the state of the longest proper suffix that is a prefix of a stop string
        self.depth: list[int] = [0]  # characters that the state has matched
        self.found: list[str | None] = [None]  # the longest stop string that ends in the state
        for stop in stops:
            self._insert(stop)
        self._link()

    def step(self, state: int, character: str) -> int:
        while state and character not in self._next[state]:
            state = self._fail[state]
        return self._next[state].get(character, 0)

    def _insert(self, stop: str) -> None:
        state = 0
        for character in stop:
            if character not in self._next[state]:
                self._next[state][character] = len(self._next)
                self._next.append({})
                self._fail.append(0)
                self.depth.append(self.depth[state] + 1)
                self.found.append(None)
            state = self._next[state][character]
        self.found[state] = stop

    def _link(self) -> None:
        queue = list(self._next[0].values())
        for state in queue:  # grows while it is walked: breadth first
            for character, child in self._next[state].items():
                self._fail[child] = self.step(self._fail[state], character)
                if self.found[child] is None:
                    self.found[child] = self.found[self._fail[child]]
                queue.append(child)


class StopMatcher:
    """Releases text as early as can be: it holds back only the longest suffix that a stop string begins with, and
    nothing where the stop string itself is to be shown.

    The match that is complete first wins; of several that end at the same character, the longest.
    """

    def __init__(self, stops: StopStrings, *, include_stop: bool = False) -> None:
        self._stops = stops
        self._include_stop = include_stop
        self._state = 0
        self._held = ""
        self._length = 0  # of the text seen
        self.stopped: Stopped | None = None

    def add(self, chunk: str, *, may_stop: bool = True) -> str:
        """The text that is safe to show now. After a match, `stopped` is set and nothing more comes. Unless it
        `may_stop`, a stop string that ends within this chunk is text like any other."""
        if self.stopped is not None:
            return ""
        for position, character in enumerate(chunk):
            self._state = self._stops.step(self._state, character)
            stop = self._stops.found[self._state]
            if stop is not None and may_stop:
                return self._stop(stop, self._held + chunk[: position + 1])
        self._length += len(chunk)
        text = self._held + chunk
        keep = 0 if self._include_stop else self._stops.depth[self._state]
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """What is still held back, when the text ends without a stop string."""
        held, self._held = self._held, ""
        return held

    def _stop(self, stop: str, text: str) -> str:
        seen = self._length - len(self._held)
        shown = len(text) - len(stop)
        self.stopped = Stopped(stop, seen + shown)
        self._held = ""
        return text if self._include_stop else text[:shown]
