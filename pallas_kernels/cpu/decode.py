"""Decode attention over pages as they lie: compiled by Numba, called by XLA, and no page is copied.

XLA's own way gathers pages, takes keys from values and masks them before it multiplies: on a CPU these copies cost more
than the products. Here each page is read once, one sequence after another, with the softmax kept as in
`reference.online_softmax`; a sequence's numbers do not depend on the others of the batch.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numba
import numpy as np
from jax import Array
from numba.core import types

from pallas_kernels.cpu.foreign_call import address, argument, data, dimension, pointer, register_once, result
from pallas_kernels.cpu.parallel_for import parallel_for
from pallas_kernels.cpu.vectors import LINE, REORDERED, add_scaled, dot, exponentials, prefetch
from pallas_kernels.reference.online_softmax import Carry

ROWS_OF_A_TURN = 2  # that threads take in turn
TOGETHER = 4  # values that are added at once; 8 were no faster


class _Softmax(NamedTuple):
    """The running softmax of all rows' query heads, [S, K, G] and [S, K, G, C] flat, and room for one page's."""

    maximum: Any
    total: Any
    output: Any
    scores: np.ndarray
    weights: np.ndarray


class _Pages(NamedTuple):
    """One layer of the pool, and whose pages are whose."""

    pool: Any
    numbers: int  # of one page and layer
    num_layers: int
    layer: int
    table: Any
    width: int


@numba.njit(error_model="numpy")
def _copy(numbers: Any, address: int, first: int, end: int) -> None:
    """numbers[first:end] from those of the float32 numbers that lie at an address."""
    source = pointer(address, types.float32)
    for i in range(first, end):
        numbers[i] = source[i]


@numba.njit(error_model="numpy")
def _place(pages: _Pages, row: int, column: int) -> int:
    """Where the page of a sequence begins in the pool."""
    return (pages.table[row * pages.width + column] * pages.num_layers + pages.layer) * pages.numbers


def attend_pages(
    carry: Carry,  # [S, K, G], [S, K, G] and [S, K, G, C]
    queries: Array,  # [S, K, G, C] float32, already scaled
    pool: Array,  # [pages, L, page_size, 2K, C] float32
    layer: Array | int,
    table: Array,  # [S, P] int32
    begin: Array,  # [S] int32: the first position that a sequence sees here
    end: Array,  # [S] int32: the position after the last; not above begin: nothing is added
    soft_cap: float | None,
) -> Carry:
    """Adds positions begin .. end of each sequence to its softmax."""
    _, _, group, head_dim = queries.shape
    own = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in carry]
    layer_number = jnp.asarray(layer, jnp.int32).reshape(1)
    call = jax.ffi.ffi_call(_target(group, head_dim, soft_cap), own)
    maximum, total, output = call(*carry, queries, pool, layer_number, table, begin, end)
    return maximum, total, output


def _target(group: int, head_dim: int, soft_cap: float | None) -> str:
    """The name of the function for these shapes, compiled where it is not yet.

    The name stands in compiled programs, which outlive this process in the compilation cache: it says all that the
    function depends on.
    """
    name = f"weft_paged_decode_{group}x{head_dim}" + ("" if soft_cap is None else f"_cap_{float(soft_cap).hex()}")
    register_once(name, lambda: _decode(group, head_dim, soft_cap))
    return name


def _decode(group: int, head_dim: int, soft_cap: float | None) -> Callable[[int], None]:
    """The function of a call frame with the arguments of one call in `attend_pages`."""
    capped = soft_cap is not None
    cap = np.float32(soft_cap or 1.0)
    # Of the next page, the numbers for each query head and position of this one: together all of it.
    share = 2 * head_dim // group

    @numba.njit(fastmath=set(REORDERED), error_model="numpy")
    def attend(
        softmax: _Softmax, at: int, query: Any, pages: _Pages, key_at: int, stride: int, count: int, next_at: int
    ) -> None:
        """Query head `at` of all rows' over `count` positions of one page, the first of which has its key at key_at.

        Waiting for memory is most of the work: what stands from next_at on is asked for meanwhile.
        """
        scores, weights = softmax.scores, softmax.weights
        most = softmax.maximum[at]
        for i in range(count):
            for number in range(i * share, (i + 1) * share, LINE):
                prefetch(pages.pool, next_at + number)
            score = dot(query, at * head_dim, pages.pool, key_at + i * stride, head_dim)
            if capped:
                score = cap * np.tanh(score / cap)
            scores[i] = score
            most = max(most, score)
        shrink = np.exp(softmax.maximum[at] - most)
        exponentials(scores, weights, most, count)
        added = np.float32(0.0)
        for i in range(count):
            added += weights[i]
        softmax.maximum[at] = most
        softmax.total[at] = softmax.total[at] * shrink + added
        for i in range(at * head_dim, (at + 1) * head_dim):
            softmax.output[i] *= shrink
        factors = pointer(address(weights), types.float32)
        output, output_at, value_at = softmax.output, at * head_dim, key_at + head_dim
        whole = count // TOGETHER * TOGETHER
        for i in range(0, whole, TOGETHER):
            value = value_at + i * stride
            add_scaled(output, output_at, factors, i, pages.pool, value, stride, head_dim, TOGETHER)
        for i in range(whole, count):
            add_scaled(output, output_at, factors, i, pages.pool, value_at + i * stride, stride, head_dim, 1)

    @numba.njit(error_model="numpy")
    def some_rows(frame: int, shared: int, turn: int) -> None:
        rows, kv_heads = dimension(argument(frame, 3), 0), dimension(argument(frame, 3), 1)
        page_size, width = dimension(argument(frame, 4), 2), dimension(argument(frame, 6), 1)
        stride = 2 * kv_heads * head_dim  # from one position to the next
        heads = kv_heads * group
        softmax = _Softmax(
            pointer(data(result(frame, 0)), types.float32),
            pointer(data(result(frame, 1)), types.float32),
            pointer(data(result(frame, 2)), types.float32),
            np.empty(page_size, np.float32),
            np.empty(page_size, np.float32),
        )
        pages = _Pages(
            pointer(data(argument(frame, 4)), types.float32),
            page_size * stride,
            dimension(argument(frame, 4), 1),
            pointer(data(argument(frame, 5)), types.int32)[0],
            pointer(data(argument(frame, 6)), types.int32),
            width,
        )
        query = pointer(data(argument(frame, 3)), types.float32)
        begin = pointer(data(argument(frame, 7)), types.int32)
        end = pointer(data(argument(frame, 8)), types.int32)
        first_row = turn * ROWS_OF_A_TURN
        rows_end = min(rows, first_row + ROWS_OF_A_TURN)
        _copy(softmax.maximum, data(argument(frame, 0)), first_row * heads, rows_end * heads)
        _copy(softmax.total, data(argument(frame, 1)), first_row * heads, rows_end * heads)
        _copy(softmax.output, data(argument(frame, 2)), first_row * heads * head_dim, rows_end * heads * head_dim)
        for row in range(first_row, rows_end):
            last = (end[row] - 1) // page_size
            for column in range(begin[row] // page_size, last + 1):
                first = max(begin[row] - column * page_size, 0)
                count = min(end[row] - column * page_size, page_size) - first
                page_at = _place(pages, row, column)
                next_at = page_at
                if column < last:
                    next_at = _place(pages, row, column + 1)
                elif row + 1 < rows_end and begin[row + 1] < end[row + 1]:
                    next_at = _place(pages, row + 1, begin[row + 1] // page_size)
                for head in range(heads):
                    key_at = page_at + first * stride + 2 * (head // group) * head_dim
                    ahead = next_at + head * share * page_size
                    attend(softmax, row * heads + head, query, pages, key_at, stride, count, ahead)

    in_turns = parallel_for(some_rows)

    @numba.njit(error_model="numpy")
    def decode(frame: int) -> None:
        rows = dimension(argument(frame, 3), 0)
        turns = (rows + ROWS_OF_A_TURN - 1) // ROWS_OF_A_TURN
        in_turns(frame, turns, 0, turns)

    return decode
