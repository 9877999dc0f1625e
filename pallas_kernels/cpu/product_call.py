"""One foreign call of a product: x [T, I] and a weight [I, O] in, [T, O] out, all sums over DEPTH numbers at a time."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numba
import numpy as np
from numba.core import types

from pallas_kernels.cpu.foreign_call import address, argument, data, dimension, pointer, result
from pallas_kernels.cpu.packing import pack
from pallas_kernels.cpu.parallel_for import Loop
from pallas_kernels.cpu.registers import DEPTH


class ProductCall(NamedTuple):
    rows: int
    depth: int
    columns: int
    x: Any
    weight_at: int
    out: Any
    out_at: int


class DepthBlock(NamedTuple):
    """Which numbers of the rows are multiplied now, and where those lie packed for the tiles."""

    begin: int
    length: int
    packed_at: int


@numba.njit(error_model="numpy")
def product_call(frame: int) -> ProductCall:
    """What a call frame says."""
    rows, depth = dimension(argument(frame, 0), 0), dimension(argument(frame, 0), 1)
    columns, out_at = dimension(argument(frame, 1), 1), data(result(frame, 0))
    x, out = pointer(data(argument(frame, 0)), types.float32), pointer(out_at, types.float32)
    return ProductCall(rows, depth, columns, x, data(argument(frame, 1)), out, out_at)


@numba.njit(error_model="numpy")
def depth_block(shared: int) -> DepthBlock:
    """What `by_depth` shares with the turns of its loop."""
    words = pointer(shared, types.int64)
    return DepthBlock(words[0], words[1], words[2])


def by_depth(some_columns: Loop, tile_rows: int, turn_columns: int) -> Callable[[int], None]:
    """The function of a call frame. A turn of the loop adds to `turn_columns` columns of the output their sums over one
    block of the depth."""

    @numba.njit(error_model="numpy")
    def product(frame: int) -> None:
        rows, depth, columns, x, _, out, _ = product_call(frame)
        for i in range(rows * columns):
            out[i] = 0
        panels = (rows + tile_rows - 1) // tile_rows
        packed = np.empty(panels * tile_rows * min(depth, DEPTH), np.float32)
        block = np.empty(3, np.int64)
        turns = (columns + turn_columns - 1) // turn_columns
        for begin in range(0, depth, DEPTH):
            count = min(depth - begin, DEPTH)
            pack(x, depth, begin, count, rows, tile_rows, packed)
            block[0], block[1], block[2] = begin, count, address(packed)
            # One core gets more than half of what memory gives; a single row leaves the others to the host.
            some_columns(frame, turns, address(block), 1 if rows == 1 else turns)
        block[2] = packed[0]  # both are mentioned once more: they live until here

    return product
