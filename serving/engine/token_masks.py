"""The masks of one step, computed on the host while the device runs the step's forward pass."""

import os
import time
from collections.abc import Callable, Sequence

import numpy as np
from llguidance import LLExecutor

from serving.engine.constraint import Constraint

MOST_THREADS = 8
ALL_BITS = np.uint32(0xFFFFFFFF)


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
