"""Products of a few rows with a whole weight, as decoding makes them: compiled by Numba, called by XLA.

XLA's own product reaches half of what a core can do with 2 to 64 rows. Here a tile of the output stays in registers,
the rows are laid so that their numbers are read in order, and the weight is read once, as it lies: what is multiplied
next is asked for meanwhile. Each number is summed in the same order however many rows there are.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numba
import numpy as np
from jax import Array
from numba.core import types

from pallas_kernels.cpu.foreign_call import address, argument, data, dimension, pointer, register_once, result
from pallas_kernels.cpu.registers import Tile, registers, tile_for
from pallas_kernels.cpu.tiles import add_product, copy_vectors
from pallas_kernels.cpu.vectors import LINE, prefetch

DEPTH = 256  # numbers of a row gone through at once: those of 16 rows, and a line of the weight for each, are 32 KiB
GATHERED = 4  # tiles whose columns are gathered at once: lines that lie side by side come from memory together
ROWS_AHEAD = (
    6  # of the weight, asked for while one is gathered: a cache of eight ways holds them whatever their distance
)
COLUMNS_OF_A_CALL = 256  # at least, where a product is dealt out to several threads
NUMBER = 4  # bytes of a float32
WEIGHTS = {"float32": (types.float32, NUMBER), "bfloat16": (types.uint16, 2)}  # as Numba reads them, and their bytes


def matmul(x: Array, weight: Array, threads: int = 1) -> Array:
    """x [T, I], weight [I, O] -> [T, O] float32. XLA multiplies what is not for these tiles: a single row, many rows,
    few columns, other types. `threads`: how many XLA has."""
    rows, columns, kind = x.shape[0], weight.shape[1], str(weight.dtype)
    held = registers()
    of_tiles = held is not None and 2 <= rows <= held.most_rows.get(kind, 0) and columns >= held.fewest_columns
    if held is None or not of_tiles or weight.shape[0] == 0:
        return jnp.dot(x, weight, preferred_element_type=jnp.float32)
    tile = tile_for(held.tiles, rows)
    target = f"weft_matmul_{kind}_{tile.name}"
    register_once(target, lambda: _product(tile, *WEIGHTS[kind]))
    return dealt_out(target, x, weight, columns, threads)


def dealt_out(target: str, x: Array, weight: Array, columns: int, threads: int) -> Array:
    """[T, columns] from as many calls as there are threads, which XLA runs side by side: each makes some columns."""
    calls = max(1, min(threads, columns // COLUMNS_OF_A_CALL))
    wide, parts = x.astype(jnp.float32), []
    for call in range(calls):
        first, last = columns * call // calls, columns * (call + 1) // calls
        part = jax.ShapeDtypeStruct((x.shape[0], last - first), jnp.float32)
        parts.append(jax.ffi.ffi_call(target, part)(wide, weight, jnp.int32([first])))
    return parts[0] if calls == 1 else jnp.concatenate(parts, axis=1)


def _product(tile: Tile, kind: Any, size: int) -> Callable[[int], None]:
    """The function of a call frame: x, the weight and the first column in, the columns from there on out."""
    tile_rows, vectors, lanes, tile_columns, gathers = tile.rows, tile.vectors, tile.lanes, tile.columns, tile.gathers

    @numba.njit(error_model="numpy")
    def pack(x: Any, depth: int, begin: int, count: int, rows: int, packed: np.ndarray) -> None:
        """Numbers begin .. begin + count of each row, those of tile_rows rows side by side; zeros for rows beyond."""
        for panel in range(0, rows, tile_rows):
            at = panel * count
            for row in range(panel, panel + tile_rows):
                for k in range(count):
                    packed[at + k * tile_rows + row - panel] = x[row * depth + begin + k] if row < rows else 0

    @numba.njit(error_model="numpy")
    def gather(weight: Any, width: int, count: int, begin: int, end: int, last: int, gathered: np.ndarray) -> None:
        """Of `count` rows of a weight the columns of the tiles that begin in begin .. end, at `last` at most: one tile
        after another, and in it row after row."""
        out = pointer(address(gathered), types.float32)
        for k in range(count):
            at = 0
            for column in range(begin, end, tile_columns):
                place = min(column, last)
                for number in range(place, place + tile_columns, LINE):
                    prefetch(weight, (k + ROWS_AHEAD) * width + number)
                copy_vectors(weight, k * width + place, out, (at + k) * tile_columns, vectors, lanes)
                at += count

    @numba.njit(error_model="numpy")
    def product(frame: int) -> None:
        rows, depth = dimension(argument(frame, 0), 0), dimension(argument(frame, 0), 1)
        width, columns = dimension(argument(frame, 1), 1), dimension(result(frame, 0), 1)
        x, out_at = pointer(data(argument(frame, 0)), types.float32), data(result(frame, 0))
        first = pointer(data(argument(frame, 2)), types.int32)[0]
        weight_at = data(argument(frame, 1)) + first * size
        out = pointer(out_at, types.float32)
        for i in range(rows * columns):
            out[i] = 0
        panels = (rows + tile_rows - 1) // tile_rows
        packed = np.empty(panels * tile_rows * min(depth, DEPTH), np.float32)
        edge = np.empty(tile_rows * tile_columns, np.float32)
        gathered = np.empty(GATHERED * tile_columns * DEPTH if gathers else 0, np.float32)
        last = columns - tile_columns
        for begin in range(0, depth, DEPTH):
            count = min(depth - begin, DEPTH)
            pack(x, depth, begin, count, rows, packed)
            for column in range(0, columns, tile_columns):
                place = min(column, last)  # the last tile covers some columns twice
                block = pointer(weight_at + (begin * width + place) * size, kind)
                ahead = tile_columns if column + 2 * tile_columns <= columns else 0
                of_gathered = column // tile_columns % GATHERED
                if gathers and of_gathered == 0:
                    whole = pointer(weight_at + begin * width * size, kind)
                    end = min(columns, column + GATHERED * tile_columns)
                    gather(whole, width, count, column, end, last, gathered)
                for row in range(0, rows, tile_rows):
                    panel = pointer(address(packed) + row * count * NUMBER, types.float32)
                    inside = place == column and row + tile_rows <= rows
                    if not inside:
                        edge[:] = 0
                    spot = pointer(
                        out_at + (row * columns + column) * NUMBER if inside else address(edge), types.float32
                    )
                    step = columns if inside else tile_columns
                    if gathers:
                        near = pointer(address(gathered) + of_gathered * count * tile_columns * NUMBER, types.float32)
                        add_product(
                            panel, tile_rows, 1, near, tile_columns, spot, step, count, 0, tile_rows, vectors, lanes
                        )
                    else:
                        add_product(
                            panel, tile_rows, 1, block, width, spot, step, count, ahead, tile_rows, vectors, lanes
                        )
                    if not inside:
                        for i in range(min(tile_rows, rows - row)):
                            for j in range(column - place, tile_columns):
                                out[(row + i) * columns + place + j] += edge[i * tile_columns + j]

    return product
