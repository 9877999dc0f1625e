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

from pallas_kernels.cpu.foreign_call import address, pointer, register_once
from pallas_kernels.cpu.gathered_matmul import gathered_product
from pallas_kernels.cpu.packing import add_part, pack
from pallas_kernels.cpu.product_call import product_call
from pallas_kernels.cpu.registers import DEPTH, NUMBER, Tile, registers, tile_for
from pallas_kernels.cpu.tiles import add_product

COLUMNS_OF_A_CALL = 256  # at least, where a product is dealt out to several threads
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
    make = gathered_product if tile.gathers else _product
    register_once(target, lambda: make(tile, *WEIGHTS[kind]))
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
    tile_rows, vectors, lanes, tile_columns = tile.rows, tile.vectors, tile.lanes, tile.columns

    @numba.njit(error_model="numpy")
    def product(frame: int) -> None:
        rows, depth, width, columns, x, weight_at, out, out_at = product_call(frame, size)
        panels = (rows + tile_rows - 1) // tile_rows
        packed = np.empty(panels * tile_rows * min(depth, DEPTH), np.float32)
        edge = np.empty(tile_rows * tile_columns, np.float32)
        for begin in range(0, depth, DEPTH):
            count = min(depth - begin, DEPTH)
            pack(x, depth, begin, count, rows, tile_rows, packed)
            for column in range(0, columns, tile_columns):
                place = min(column, columns - tile_columns)  # the last tile covers some columns twice
                block = pointer(weight_at + (begin * width + place) * size, kind)
                ahead = tile_columns if column + 2 * tile_columns <= columns else 0
                for row in range(0, rows, tile_rows):
                    panel = pointer(address(packed) + row * count * NUMBER, types.float32)
                    if place == column and row + tile_rows <= rows:
                        spot = pointer(out_at + (row * columns + column) * NUMBER, types.float32)
                        add_product(
                            panel, tile_rows, 1, block, width, spot, columns, count, ahead, tile_rows, vectors, lanes
                        )
                        continue
                    edge[:] = 0
                    spot = pointer(address(edge), types.float32)
                    add_product(
                        panel, tile_rows, 1, block, width, spot, tile_columns, count, 0, tile_rows, vectors, lanes
                    )
                    inside = min(tile_rows, rows - row)
                    add_part(edge, tile_columns, column - place, out, row * columns + place, columns, inside)

    return product
