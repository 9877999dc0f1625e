"""Products of a few rows with a weight whose rows are the columns of the output, as a table of token vectors that gives
the logits too.

As in matmul.py a tile of the output stays in registers, but here the rows of x are the lanes of its vectors: the weight
is read once, a few of its rows side by side, each in order.
"""

from collections.abc import Callable

import jax.numpy as jnp
import numba
import numpy as np
from jax import Array
from numba.core import types

from pallas_kernels.cpu.foreign_call import address, argument, data, dimension, pointer, register_once, result
from pallas_kernels.cpu.matmul import dealt_out
from pallas_kernels.cpu.registers import NUMBER, Tile, registers, tile_for
from pallas_kernels.cpu.tiles import add_product


def transposed_matmul(x: Array, weight: Array, threads: int = 1) -> Array:
    """x [T, I], weight [O, I] -> x @ weight.T [T, O] float32. XLA multiplies what is left to it in `matmul`, and
    weights in bfloat16."""
    rows, columns, kind = x.shape[0], weight.shape[0], str(weight.dtype)
    held = registers()
    of_tiles = held is not None and 2 <= rows <= max(held.transposed_tiles) and columns >= held.fewest_columns
    if held is None or not of_tiles or kind != "float32" or weight.shape[1] == 0:
        return jnp.einsum("ti,oi->to", x, weight, preferred_element_type=jnp.float32)
    tile = tile_for(held.transposed_tiles, rows)
    target = f"weft_transposed_matmul_{tile.name}"
    register_once(target, lambda: _product(tile))
    return dealt_out(target, x, weight, columns, threads)


def _product(tile: Tile) -> Callable[[int], None]:
    """The function of a call frame: x, the weight and its first row in, the columns from there on out."""
    weight_rows, vectors, lanes, width = tile.rows, tile.vectors, tile.lanes, tile.columns
    number = types.float32

    @numba.njit(error_model="numpy")
    def product(frame: int) -> None:
        rows, depth = dimension(argument(frame, 0), 0), dimension(argument(frame, 0), 1)
        columns = dimension(result(frame, 0), 1)
        x, out = pointer(data(argument(frame, 0)), number), pointer(data(result(frame, 0)), number)
        first = pointer(data(argument(frame, 2)), types.int32)[0]
        weight_at = data(argument(frame, 1)) + first * depth * NUMBER
        padded = (rows + width - 1) // width * width
        packed = np.zeros(padded * depth, np.float32)  # for each `width` rows of x, those numbers side by side
        for row in range(rows):
            at = row // width * width * depth + row % width
            for k in range(depth):
                packed[at + k * width] = x[row * depth + k]
        found = np.empty(weight_rows * width, np.float32)
        for column in range(0, columns, weight_rows):
            place = min(column, columns - weight_rows)  # the last tile makes some columns twice
            block = pointer(weight_at + place * depth * NUMBER, number)
            for row in range(0, rows, width):
                found[:] = 0
                panel = pointer(address(packed) + row * depth * NUMBER, number)
                spot = pointer(address(found), number)
                add_product(block, 1, depth, panel, width, spot, width, depth, 0, weight_rows, vectors, lanes)
                for i in range(min(width, rows - row)):
                    for j in range(weight_rows):
                        out[(row + i) * columns + place + j] = found[j * width + i]

    return product
