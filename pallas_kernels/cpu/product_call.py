"""One foreign call of a product: x [T, I], a weight [I, O] and the first of its columns in, the columns from there on
out, which begin at zero."""

from typing import Any, NamedTuple

import numba
from numba.core import types

from pallas_kernels.cpu.foreign_call import argument, data, dimension, pointer, result


class ProductCall(NamedTuple):
    rows: int
    depth: int
    width: int  # columns of the whole weight
    columns: int
    x: Any
    weight_at: int  # where the first of the columns begins
    out: Any
    out_at: int


@numba.njit(error_model="numpy")
def product_call(frame: int, size: int) -> ProductCall:
    """What a call frame says, where a number of the weight has `size` bytes."""
    rows, depth = dimension(argument(frame, 0), 0), dimension(argument(frame, 0), 1)
    width, columns = dimension(argument(frame, 1), 1), dimension(result(frame, 0), 1)
    x, out_at = pointer(data(argument(frame, 0)), types.float32), data(result(frame, 0))
    first = pointer(data(argument(frame, 2)), types.int32)[0]
    out = pointer(out_at, types.float32)
    for i in range(rows * columns):
        out[i] = 0
    return ProductCall(rows, depth, width, columns, x, data(argument(frame, 1)) + first * size, out, out_at)
