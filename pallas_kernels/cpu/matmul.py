"""Products of a few rows with a whole weight, as decoding makes them: compiled by Numba, called by XLA.

With 2 to 64 rows XLA's own product reaches half of what a core can do on some processors, and gains little from a
second one on others. Here a tile of the output stays in registers, the rows are laid so that their numbers are read in
order, and the weight is read once, as it lies: what is multiplied next is asked for meanwhile. Threads take columns in
turns. Each number is summed in the same order however many rows and threads there are.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numba
import numpy as np
from jax import Array
from numba.core import types

from pallas_kernels.cpu.foreign_call import address, pointer, register_once
from pallas_kernels.cpu.gathered_matmul import gathered_product
from pallas_kernels.cpu.packing import add_part
from pallas_kernels.cpu.parallel_for import parallel_for
from pallas_kernels.cpu.product_call import by_depth, depth_block, product_call
from pallas_kernels.cpu.registers import NUMBER, Tile, registers, tile_for
from pallas_kernels.cpu.tiles import add_product

COLUMNS_OF_A_TURN = 128  # about
WEIGHTS = {"float32": (types.float32, NUMBER), "bfloat16": (types.uint16, 2)}  # as Numba reads them, and their bytes


def matmul(x: Array, weight: Array) -> Array:
    """x [T, I], weight [I, O] -> [T, O] float32. XLA multiplies what is not for these tiles: many rows, few columns,
    other types."""
    rows, columns, kind = x.shape[0], weight.shape[1], str(weight.dtype)
    tile = tile_of(rows, kind)
    if tile is None or columns < tile.columns or weight.shape[0] == 0:
        return jnp.dot(x, weight, preferred_element_type=jnp.float32)
    target = f"weft_matmul_{kind}_{tile.name}"
    make = gathered_product if tile.gathers else _product
    register_once(target, lambda: make(tile, *WEIGHTS[kind]))
    out = jax.ShapeDtypeStruct((rows, columns), jnp.float32)
    return jax.ffi.ffi_call(target, out)(x.astype(jnp.float32), weight)


def tile_of(rows: int, kind: str) -> Tile | None:
    """The tile for so many rows and a weight of this type; None where XLA is as fast."""
    held = registers()
    if held is None or not held.fewest_rows.get(kind, 1) <= rows <= held.most_rows.get(kind, 0):
        return None
    return tile_for(held.tiles, rows)


def _product(tile: Tile, kind: Any, size: int) -> Callable[[int], None]:
    """The function of a call frame: x and the weight in, the product out."""
    tile_rows, vectors, lanes, tile_columns = tile.rows, tile.vectors, tile.lanes, tile.columns
    turn_columns = (COLUMNS_OF_A_TURN + tile_columns - 1) // tile_columns * tile_columns

    @numba.njit(error_model="numpy")
    def some_columns(frame: int, shared: int, turn: int) -> None:
        call = product_call(frame)
        rows, columns = call.rows, call.columns
        begin, count, packed_at = depth_block(shared)
        edge = np.empty(tile_rows * tile_columns, np.float32)
        end = min(columns, (turn + 1) * turn_columns)
        for column in range(turn * turn_columns, end, tile_columns):
            place = min(column, columns - tile_columns)  # the last tile covers some columns twice
            weight = pointer(call.weight_at + (begin * columns + place) * size, kind)
            ahead = tile_columns if column + 2 * tile_columns <= end else 0
            for row in range(0, rows, tile_rows):
                panel = pointer(packed_at + row * count * NUMBER, types.float32)
                if place == column and row + tile_rows <= rows:
                    spot = pointer(call.out_at + (row * columns + column) * NUMBER, types.float32)
                    add_product(
                        panel, tile_rows, 1, weight, columns, spot, columns, count, ahead, tile_rows, vectors, lanes
                    )
                    continue
                edge[:] = 0
                spot = pointer(address(edge), types.float32)
                add_product(
                    panel, tile_rows, 1, weight, columns, spot, tile_columns, count, 0, tile_rows, vectors, lanes
                )
                inside = min(tile_rows, rows - row)
                add_part(edge, tile_columns, column - place, call.out, row * columns + place, columns, inside)

    return by_depth(parallel_for(some_columns), tile_rows, turn_columns)
