"""Weights in MXFP4 (OCP Microscaling Formats 1.0): 32 numbers of 4 bits share a scale of 8, a power of two.

A checkpoint holds such a tensor X [..., N] as two: X_blocks [..., N / 32, 16], two numbers in a byte, the first of them
in its low half, and X_scales [..., N / 32], exponents beyond 127. They are widened as they are read: every one of these
numbers is exact in bfloat16.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from models.errors import CheckpointError
from models.tensor_files import TensorFiles

BLOCKS, SCALES = "_blocks", "_scales"
BLOCK = 32  # numbers of one scale
EXPONENT_BIAS = 127
_MAGNITUDES = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], np.float32)
_NUMBERS = np.concatenate([_MAGNITUDES, -_MAGNITUDES])  # E2M1, by its bits


def widened(blocks: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """blocks [..., N / 32, 16], scales [..., N / 32], both uint8 -> [..., N] float32."""
    numbers = np.empty((*blocks.shape, 2), np.float32)
    numbers[..., 0] = _NUMBERS[blocks & 15]
    numbers[..., 1] = _NUMBERS[blocks >> 4]
    exponents = scales.astype(np.int32) - EXPONENT_BIAS
    wide = np.ldexp(numbers, exponents[..., None, None], out=numbers)
    return wide.reshape(*scales.shape[:-1], -1)


class UnpackedFiles:
    """`files` with each tensor of `packed` under its own name, and as if it lay there in full."""

    def __init__(self, files: TensorFiles, packed: Sequence[str]) -> None:
        """Raises CheckpointError for a pair that is not there, or no such pair."""
        self._files = files
        self._packed = frozenset(packed)
        self._halves = {name + half for name in packed for half in (BLOCKS, SCALES)}
        for name in packed:
            check_halves(files, name)

    def __iter__(self) -> Iterator[str]:
        yield from (name for name in self._files if name not in self._halves)
        yield from sorted(self._packed)

    def __contains__(self, name: str) -> bool:
        return name in self._packed or (name in self._files and name not in self._halves)

    def shape(self, name: str) -> tuple[int, ...]:
        if name not in self._packed:
            return self._files.shape(name)
        *lead, groups = self._files.shape(name + SCALES)
        return (*lead, groups * BLOCK)

    def nbytes(self, name: str) -> int:
        """In the file."""
        if name not in self._packed:
            return self._files.nbytes(name)
        return sum(int(np.prod(self._files.shape(name + half))) for half in (BLOCKS, SCALES))

    def rows(self, name: str, begin: int, end: int) -> np.ndarray:
        """[end - begin, ...] of the tensor's first dimension; of a packed one as float32."""
        if name not in self._packed:
            return self._files.rows(name, begin, end)
        return widened(self._files.rows(name + BLOCKS, begin, end), self._files.rows(name + SCALES, begin, end))


def check_halves(files: TensorFiles, name: str) -> None:
    """Raises CheckpointError for a pair that is not there, or no such pair."""
    for half in (name + BLOCKS, name + SCALES):
        if half not in files:
            raise CheckpointError(f"tensor {half} is missing; quantization_config says that {name} is in MXFP4")
        if files.dtype(half) != "U8":
            raise CheckpointError(f"tensor {half} is {files.dtype(half)}; in MXFP4 it must be U8")
    blocks, scales = list(files.shape(name + BLOCKS)), list(files.shape(name + SCALES))
    if blocks != [*scales, BLOCK // 2]:
        raise CheckpointError(f"tensor {name}{BLOCKS} has shape {blocks}; by its scales it must be {[*scales, 16]}")
