"""What one stream may say next, by its grammar."""

from collections.abc import Sequence

import numpy as np
from llguidance import LLMatcher


class Constraint:
    """A grammar's matcher and how far it has read.

    It reads a stream's output when it is asked to (`follow`), and unreads what is not there any more: so that a stream
    that was preempted, one that goes on in another engine, and one whose draft tokens were refused need nothing else.
    """

    __slots__ = ("_begin", "_failure", "_free", "_matcher", "_read", "_starts_after")

    def __init__(self, matcher: LLMatcher, free: np.ndarray, starts_after: Sequence[int] = ()) -> None:
        """`matcher` has read nothing and is nobody else's. `free` [W] uint32 is the mask until the output has
        `starts_after`."""
        self._matcher = matcher
        self._free = free
        self._starts_after = list(starts_after)
        self._begin: int | None = None if starts_after else 0  # of the output: where the grammar begins
        self._read = 0  # tokens of the output
        self._failure: str | None = None

    @property
    def failure(self) -> str | None:
        """Why no token can be allowed any more: a limit on what a step may cost, or output that does not match."""
        if self._failure is None and self._matcher.is_error():
            self._failure = brief(self._matcher.get_error())
        return self._failure

    @property
    def matcher(self) -> LLMatcher | None:
        """What computes the mask; None where there is nothing to compute: see `mask`."""
        return None if self._begin is None or self.failure is not None else self._matcher

    @property
    def is_complete(self) -> bool:
        """Whether nothing but the end of the text may follow."""
        return self._begin is not None and self._matcher.is_stopped()

    @property
    def mask(self) -> np.ndarray:
        """[W] uint32: what is allowed where there is no matcher."""
        return self._free

    def forced(self, most: int) -> tuple[int, ...]:
        """The next tokens, at most so many, as far as each is the only one that its mask allows; they are not read.
        Nothing where it is not two: one is drawn as soon as it could be fed."""
        matcher = self.matcher
        if matcher is None:
            return ()
        found: list[int] = []
        for token_id in matcher.compute_ff_tokens()[:most]:
            if _only_bit(matcher.compute_bitmask()) != token_id or matcher.try_consume_tokens([token_id]) != 1:
                break
            found.append(token_id)
        if found and not matcher.rollback(len(found)):
            self._failure = brief(matcher.get_error())
        return tuple(found) if len(found) > 1 and self.failure is None else ()

    def follow(self, tokens: Sequence[int], first: int = 0) -> None:
        """Makes tokens[first:] the output that was read."""
        count = len(tokens) - first
        if count < self._read:
            self._unread(count)
        if self._begin is None:
            self._look_for_begin(tokens, first, count)
        if self._begin is not None and count > self._read and self.failure is None:
            new = list(tokens[first + self._read :])
            allowed = self._matcher.try_consume_tokens(new)
            if allowed < len(new) and not self._matcher.is_error():
                self._failure = f"token {self._read + allowed} of the output is not what the grammar allows"
        self._read = count

    def _unread(self, count: int) -> None:
        if self._begin is not None:
            matched = self._read - max(count, self._begin)
            if matched and not self._matcher.rollback(matched):
                self._failure = brief(self._matcher.get_error())
            if self._starts_after and count < self._begin:
                self._begin = None
        self._read = count

    def _look_for_begin(self, tokens: Sequence[int], first: int, count: int) -> None:
        size = len(self._starts_after)
        for end in range(max(self._read + 1, size), count + 1):
            if list(tokens[first + end - size : first + end]) == self._starts_after:
                self._begin = self._read = end
                return


def _only_bit(mask: bytes) -> int | None:
    """The token that a mask allows; None where it is not exactly one."""
    words = np.frombuffer(mask, np.uint8)
    (places,) = np.nonzero(words)
    if len(places) != 1:
        return None
    word = int(words[places[0]])
    return int(places[0]) * 8 + word.bit_length() - 1 if word & (word - 1) == 0 else None


def brief(message: str) -> str:
    """What llguidance says on one line, without the state or the stack that may follow it."""
    for tail in ("<state>", "<backtrace>", "<non-verbose/>"):
        message = message.split(tail, 1)[0]
    return " ".join(message.split())[:300] or "it failed without a reason"
