"""Products of a few rows with a weight whose rows are the columns of the output, as a table of token vectors that gives
the logits too.

As in matmul.py a tile of the output stays in registers, but here the rows of x are the lanes of its vectors: the weight
is read once, a few of its rows side by side, each in order.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numba
import numpy as np
from jax import Array
from numba.core import types

from pallas_kernels.cpu.foreign_call import address, argument, data, dimension, pointer, register_once, result
from pallas_kernels.cpu.parallel_for import parallel_for
from pallas_kernels.cpu.registers import NUMBER, Tile, registers, tile_for
from pallas_kernels.cpu.tiles import add_product

FEWEST_COLUMNS = 32
TILES_OF_A_TURN = 16  # whose rows of the weight threads take in turn


def transposed_matmul(x: Array, weight: Array) -> Array:
    """x [T, I], weight [O, I] -> x @ weight.T [T, O] float32. XLA multiplies what is left to it in `matmul`, and
    weights in bfloat16."""
    rows, columns, kind = x.shape[0], weight.shape[0], str(weight.dtype)
    held = registers()
    of_tiles = held is not None and held.fewest_rows["float32"] <= rows <= max(held.transposed_tiles)
    if held is None or not of_tiles or columns < FEWEST_COLUMNS or kind != "float32" or weight.shape[1] == 0:
        return jnp.einsum("ti,oi->to", x, weight, preferred_element_type=jnp.float32)
    tile = tile_for(held.transposed_tiles, rows)
    target = f"weft_transposed_matmul_{tile.name}"
    register_once(target, lambda: _product(tile))
    out = jax.ShapeDtypeStruct((rows, columns), jnp.float32)
    return jax.ffi.ffi_call(target, out)(x.astype(jnp.float32), weight)


def _product(tile: Tile) -> Callable[[int], None]:
    """The function of a call frame: x and the weight in, the product out."""
    weight_rows, vectors, lanes, width = tile.rows, tile.vectors, tile.lanes, tile.columns
    turn_columns = TILES_OF_A_TURN * weight_rows
    number = types.float32

    @numba.njit(error_model="numpy")
    def some_columns(frame: int, packed_at: int, turn: int) -> None:
        rows, depth = dimension(argument(frame, 0), 0), dimension(argument(frame, 0), 1)
        columns, weight_at = dimension(argument(frame, 1), 0), data(argument(frame, 1))
        out = pointer(data(result(frame, 0)), number)
        found = np.empty(weight_rows * width, np.float32)
        for column in range(turn * turn_columns, min(columns, (turn + 1) * turn_columns), weight_rows):
            place = min(column, columns - weight_rows)  # the last tile makes some columns twice
            block = pointer(weight_at + place * depth * NUMBER, number)
            for row in range(0, rows, width):
                found[:] = 0
                panel = pointer(packed_at + row * depth * NUMBER, number)
                spot = pointer(address(found), number)
                add_product(block, 1, depth, panel, width, spot, width, depth, 0, weight_rows, vectors, lanes)
                for i in range(min(width, rows - row)):
                    for j in range(column - place, weight_rows):
                        out[(row + i) * columns + place + j] = found[j * width + i]

    in_turns = parallel_for(some_columns)

    @numba.njit(error_model="numpy")
    def product(frame: int) -> None:
        rows, depth = dimension(argument(frame, 0), 0), dimension(argument(frame, 0), 1)
        columns, x = dimension(argument(frame, 1), 0), pointer(data(argument(frame, 0)), number)
        padded = (rows + width - 1) // width * width
        packed = np.zeros(padded * depth, np.float32)  # for each `width` rows of x, those numbers side by side
        for row in range(rows):
            at = row // width * width * depth + row % width
            for k in range(depth):
                packed[at + k * width] = x[row * depth + k]
        turns = (columns + turn_columns - 1) // turn_columns
        in_turns(frame, turns, address(packed), turns)
        packed[0] = 0  # mentioned once more: it lives until here

    return product
