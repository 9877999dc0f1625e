"""The masks of one step, computed on the host while the device runs the step's forward pass."""

import os
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from llguidance import LLExecutor

from serving.engine.constraint import Constraint

MOST_THREADS = 8
ALL_BITS = np.uint32(0xFFFFFFFF)


class Sequenced(Protocol):
    """A stream, as far as its grammar is concerned."""

    @property
    def tokens(self) -> list[int]: ...

    @property
    def num_prompt(self) -> int: ...


class TokenMasks:
    """`seconds` counts what computing has taken, `computed` the masks."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.seconds = 0.0
        self.computed = 0
        self._now = now
        self._threads: LLExecutor | None = None  # started by the first mask

    def of(self, constraints: Sequence[Constraint | None]) -> np.ndarray:
        """[n, W] uint32, one bit a token. None allows all: it is for a stream that has ended. Where a limit of the
        grammar is met meanwhile, the constraint has failed and its row means nothing."""
        begin = self._now()
        words = next((len(constraint.mask) for constraint in constraints if constraint is not None), 1)
        masks = np.full((len(constraints), words), ALL_BITS, np.uint32)
        matchers = []
        for i, constraint in enumerate(constraints):
            if constraint is None:
                continue
            if (matcher := constraint.matcher) is None:
                masks[i] = constraint.mask
            else:
                matchers.append((matcher, i))
        if matchers:
            if self._threads is None:
                self._threads = LLExecutor(min(MOST_THREADS, os.cpu_count() or 1))
            self._threads.unsafe_compute_mask_ptr(matchers, masks.ctypes.data, words * 4, len(constraints))
            self.computed += len(matchers)
        self.seconds += self._now() - begin
        return masks

    def of_guesses(
        self, owners: Sequence[Sequenced], constraints: Sequence[Constraint | None], guesses: Sequence[list[int]]
    ) -> np.ndarray:
        """[n, W] uint32 of a step with guesses: for each stream one row a draw, of which there is one more than it has
        guesses. What follows a guess that is not allowed will not be drawn, and all is allowed there.

        The constraints have followed their owners' tokens, and have so again when this returns.
        """
        words = next((len(constraint.mask) for constraint in constraints if constraint is not None), 1)
        rows: list[np.ndarray] = []
        firsts = self.of(constraints)
        for owner, constraint, guessed, first in zip(owners, constraints, guesses, firsts, strict=True):
            of_stream = np.full((len(guessed) + 1, words), ALL_BITS, np.uint32)
            of_stream[0] = first
            if constraint is not None:
                self._follow_guesses(owner, constraint, guessed, of_stream)
            rows.append(of_stream)
        return np.concatenate(rows)

    def _follow_guesses(self, owner: Sequenced, constraint: Constraint, guessed: list[int], masks: np.ndarray) -> None:
        tokens = list(owner.tokens)
        for number, token in enumerate(guessed):
            if constraint.failure is not None or constraint.is_complete:
                break
            if not masks[number, token // 32] >> np.uint32(token % 32) & 1:
                break
            tokens.append(token)
            constraint.follow(tokens, owner.num_prompt)
            masks[number + 1] = self.of([constraint])[0]
        constraint.follow(owner.tokens, owner.num_prompt)
