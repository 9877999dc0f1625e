"""Host memory for pages: one mapping, in which a slot is one page over all layers."""

import math
import mmap
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class PageForm:
    """What a page is made of: one array for each leaf of the pool, without the pool's first dimension, as words of the
    same width (so that copies keep every bit, whatever the numbers mean)."""

    shapes: tuple[tuple[int, ...], ...]
    words: tuple[str, ...]  # numpy's names: uint8, uint16, uint32

    @property
    def num_bytes(self) -> int:
        return sum(self._sizes)

    @property
    def _sizes(self) -> tuple[int, ...]:
        return tuple(
            math.prod(shape) * np.dtype(word).itemsize for shape, word in zip(self.shapes, self.words, strict=True)
        )

    def views(self, memory: memoryview, slots: int) -> tuple[np.ndarray, ...]:
        """One array [slots, ...] a leaf over `memory`."""
        arrays, begin = [], 0
        for shape, word, size in zip(self.shapes, self.words, self._sizes, strict=True):
            end = begin + slots * size
            arrays.append(np.frombuffer(memory[begin:end], word).reshape(slots, *shape))
            begin = end
        return tuple(arrays)


class HostPages:
    """`slots` pages. Nothing is taken from the system before it is written."""

    def __init__(self, form: PageForm, slots: int) -> None:
        self.form = form
        self._memory = mmap.mmap(-1, slots * form.num_bytes)
        self._arrays = form.views(memoryview(self._memory), slots)

    def put(self, slots: Sequence[int], arrays: Sequence[np.ndarray]) -> None:
        """The first pages of arrays [n or more, ...], one a leaf, to `slots`."""
        for held, given in zip(self._arrays, arrays, strict=True):
            for place, slot in enumerate(slots):
                held[slot] = given[place]

    def get(self, slots: Sequence[int], size: int) -> tuple[np.ndarray, ...]:
        """Copies of `slots` as arrays [size, ...], one a leaf; what lies behind them means nothing."""
        copies = []
        for held in self._arrays:
            copy = np.empty((size, *held.shape[1:]), held.dtype)
            for place, slot in enumerate(slots):
                copy[place] = held[slot]
            copies.append(copy)
        return tuple(copies)

    def parts(self, slot: int) -> tuple[memoryview, ...]:
        """The bytes of a slot, leaf by leaf, to be read from or written to."""
        return tuple(memoryview(held[slot].reshape(-1).view(np.uint8)) for held in self._arrays)
