"""Products of more rows than a tile has, where registers are few: the weight's columns are gathered first.

A tile of few rows goes over its columns of the weight many times. They lie a row apart from each other, mostly a power
of two, and then a cache holds a few of them only. Gathered they are one run of memory, as float32, and the products are
as fast as registers allow.
"""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba.core import types

from pallas_kernels.cpu.foreign_call import address, pointer
from pallas_kernels.cpu.packing import add_part
from pallas_kernels.cpu.parallel_for import parallel_for
from pallas_kernels.cpu.product_call import by_depth, depth_block, product_call
from pallas_kernels.cpu.registers import NUMBER, Tile
from pallas_kernels.cpu.tiles import add_product, copy_vectors
from pallas_kernels.cpu.vectors import LINE, prefetch

TOGETHER = 8  # tiles whose columns are gathered at once: lines side by side come from memory sooner
# Rows of the weight that are asked for while one is gathered: a cache of eight ways holds them whatever their stride.
ROWS_AHEAD = 3


def gathered_product(tile: Tile, kind: Any, size: int) -> Callable[[int], None]:
    """As `matmul._product`: the function of a call frame, with the weight's numbers of this kind and size in bytes."""
    tile_rows, vectors, lanes, tile_columns = tile.rows, tile.vectors, tile.lanes, tile.columns
    block_columns = TOGETHER * tile_columns

    @numba.njit(error_model="numpy")
    def gather(weight: Any, width: int, count: int, begin: int, end: int, last: int, out: Any) -> None:
        """Of `count` rows of a weight the columns of the tiles that begin in begin .. end, at `last` at most: one tile
        after another, and in it row after row."""
        for k in range(count):
            at = k * tile_columns
            for column in range(begin, end, tile_columns):
                place = min(column, last)
                for number in range(place, place + tile_columns, LINE):
                    prefetch(weight, (k + ROWS_AHEAD) * width + number)
                copy_vectors(weight, k * width + place, out, at, vectors, lanes)
                at += count * tile_columns

    @numba.njit(error_model="numpy")
    def some_columns(frame: int, shared: int, turn: int) -> None:
        call = product_call(frame)
        rows, columns = call.rows, call.columns
        begin, count, packed_at = depth_block(shared)
        edge = np.empty(tile_rows * tile_columns, np.float32)
        gathered = np.empty(block_columns * count, np.float32)
        first, end = turn * block_columns, min(columns, (turn + 1) * block_columns)
        last = columns - tile_columns  # where the last tile begins: it covers some columns twice
        weight = pointer(call.weight_at + begin * columns * size, kind)
        gather(weight, columns, count, first, end, last, pointer(address(gathered), types.float32))
        for column in range(first, end, tile_columns):
            block = pointer(address(gathered) + (column - first) * count * NUMBER, types.float32)
            place = min(column, last)
            for row in range(0, rows, tile_rows):
                panel = pointer(packed_at + row * count * NUMBER, types.float32)
                whole = place == column and row + tile_rows <= rows
                if not whole:
                    edge[:] = 0
                spot_at = call.out_at + (row * columns + column) * NUMBER if whole else address(edge)
                step = columns if whole else tile_columns
                spot = pointer(spot_at, types.float32)
                add_product(panel, tile_rows, 1, block, tile_columns, spot, step, count, 0, tile_rows, vectors, lanes)
                if not whole:
                    inside = min(tile_rows, rows - row)
                    add_part(edge, tile_columns, column - place, call.out, row * columns + place, columns, inside)

    return by_depth(parallel_for(some_columns), tile_rows, block_columns)
