"""Grouped matmul for TPUs, in Mosaic.

    rows of x   | a a a a a a | a a b b b b | c c c c d d | d d d . . . |      tiles of `rows` rows
    visits        a, tile 0     a, tile 1     c, tile 2     d, tile 3
                                b, tile 1     d, tile 2

A visit is one expert's share of one tile: a product of the whole tile, of which the expert's rows are kept. What a
visit reads is known before the grid starts (scalar prefetch), so that the next matrix is on its way while this one is
multiplied. Visits to the same tile follow one another, and the tile of the result stays in VMEM for all of them. The
method is that of Gale et al., MegaBlocks, arXiv 2211.15841, as grouped over rows.

8-bit matrices arrive in VMEM as they are and become x's dtype there; sums of the rows that share a scale are scaled
in float32.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.typing import DTypeLike

from pallas_kernels.grouped import ExpertMatrices, ExpertWeights, expert_matrices, expert_shape

LANES = 128
LEAST_ROWS, MOST_ROWS = 16, 512  # of a tile; a register of bfloat16 has 16
MOST_DEPTH = 2048  # of D, multiplied in one step
WEIGHT_BYTES = 2 << 20  # of one matrix block in x's dtype
EIGHT_BITS = (jnp.dtype(jnp.int8), jnp.dtype(jnp.float8_e4m3fn))
FLOATS = (jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float32))

Ref = Any  # a Pallas reference; the public API has no type for it


@dataclass(frozen=True)
class GroupedTiles:
    """Sizes of one step: `rows` of x, `depth` of D, `columns` of F."""

    rows: int
    depth: int
    columns: int
    vmem_limit: int | None = None

    @staticmethod
    def derived(num_rows: int, num_groups: int, matrices: ExpertMatrices, dtype: DTypeLike) -> "GroupedTiles":
        """Tiles that suit groups of average size, within 16 MB of VMEM."""
        _, d, f = matrices.values.shape
        average = -(-num_rows // num_groups)
        rows = min(max(1 << (average - 1).bit_length(), LEAST_ROWS), MOST_ROWS)
        depth = _depth(d, matrices.rows_per_scale)
        columns = WEIGHT_BYTES // (jnp.dtype(dtype).itemsize * depth) // LANES * LANES
        return GroupedTiles(rows, depth, min(max(columns, LANES), -(-f // LANES) * LANES))


def refusal(weights: ExpertWeights, dtype: DTypeLike) -> str | None:
    """Why this body cannot multiply rows of `dtype` by such weights: a sentence, or None if it can."""
    shape, rows = expert_shape(weights), jnp.dtype(dtype)
    if rows not in FLOATS:
        return f"the TPU grouped matmul takes rows in bfloat16 or float32, not {rows}"
    if shape.rows_per_scale is None and shape.dtype not in FLOATS:
        return f"the TPU grouped matmul takes weights in bfloat16, float32, int8 or float8_e4m3fn, not {shape.dtype}"
    if shape.rows_per_scale is not None and shape.dtype not in EIGHT_BITS:
        return f"the TPU grouped matmul takes scaled weights in int8 or float8_e4m3fn, not {shape.dtype}"
    if shape.d > MOST_DEPTH * 2 and shape.d % LANES:
        return f"the TPU grouped matmul takes D in multiples of {LANES} beyond {MOST_DEPTH * 2}, not {shape.d}"
    if shape.rows_per_scale not in (None, shape.d) and shape.rows_per_scale % LANES:
        return f"the TPU grouped matmul takes scales of {LANES} rows or multiples, not {shape.rows_per_scale}"
    return None


def grouped_matmul(
    x: Array,  # [M, D], expert after expert
    weights: ExpertWeights,  # [E, D, F] or [E, N, D, F]
    group_sizes: Array,  # [experts that have groups] int32, sum at most M
    *,
    first_expert: Array | int = 0,
    preferred_element_type: DTypeLike | None = None,
    tiles: GroupedTiles | None = None,
    interpret: Any = False,
) -> Array:
    """x's rows times their experts' matrices, summed in float32: [M, N * F] (see `pallas_kernels.grouped`).

    Raises ValueError for what `refusal` names.
    """
    m, d = x.shape
    reason = refusal(weights, x.dtype)
    if reason is not None:
        raise ValueError(reason)
    matrices = expert_matrices(weights)
    products, f = matrices.products, matrices.values.shape[2]
    tiles = tiles or GroupedTiles.derived(m, group_sizes.shape[0], matrices, x.dtype)
    visits = _visits(group_sizes, m, tiles.rows, jnp.asarray(first_expert, jnp.int32), products)
    columns = pl.cdiv(f, tiles.columns)
    depths = d // tiles.depth
    out_dtype = x.dtype if preferred_element_type is None else preferred_element_type

    def row_block(j: Array, v: Array, k: Array, of: _Visits) -> tuple[Any, ...]:
        return of.tile[v], k

    def matrix_block(j: Array, v: Array, k: Array, of: _Visits) -> tuple[Any, ...]:
        return of.matrix[v] + lax.div(j, columns), k, lax.rem(j, columns)

    def scale_block(j: Array, v: Array, k: Array, of: _Visits) -> tuple[Any, ...]:
        return of.matrix[v] + lax.div(j, columns), 0, lax.rem(j, columns)

    def out_block(j: Array, v: Array, k: Array, of: _Visits) -> tuple[Any, ...]:
        return lax.div(j, columns), of.tile[v], lax.rem(j, columns)

    def spec(shape: tuple[int | None, ...], index: Any) -> pl.BlockSpec:
        return pl.BlockSpec(shape, lambda j, v, k, *prefetched: index(j, v, k, _Visits(*prefetched)))

    in_specs = [
        spec((tiles.rows, tiles.depth), row_block),
        spec((None, tiles.depth, tiles.columns), matrix_block),
        None if matrices.scales is None else spec((None, matrices.scales.shape[1], tiles.columns), scale_block),
    ]
    out = pl.pallas_call(
        partial(_kernel, rows_per_scale=matrices.rows_per_scale),
        out_shape=jax.ShapeDtypeStruct((products, m, f), out_dtype),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(_Visits._fields) - 1,
            grid=(products * columns, visits.num_visits, depths),  # type: ignore[arg-type]
            in_specs=in_specs,
            out_specs=spec((None, tiles.rows, tiles.columns), out_block),
            scratch_shapes=[pltpu.VMEM((tiles.rows, tiles.columns), jnp.float32)],
        ),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary", "arbitrary"), vmem_limit_bytes=tiles.vmem_limit
        ),
        cost_estimate=_cost(m, matrices, group_sizes.shape[0], x.dtype),
        interpret=interpret,
        name="grouped_matmul",
    )(*visits[:-1], x, matrices.values, matrices.scales)
    # The compiler reads a half of a concatenation from where it was before: no copy is made for who takes it apart.
    return jnp.concatenate([out[n] for n in range(products)], axis=1)


class _Visits(NamedTuple):
    """[most visits] int32 each, but for the count: what the grid's steps are told in advance."""

    matrix: Array  # the first of the expert's
    tile: Array
    begin: Array  # the expert's rows
    end: Array
    num_visits: Array | None = None  # [] int32, at least 1


def _visits(group_sizes: Array, num_rows: int, rows: int, first_expert: Array, products: int) -> _Visits:
    ends = jnp.cumsum(group_sizes)
    begins = ends - group_sizes
    first_tile = begins // rows
    of_group = jnp.where(group_sizes > 0, (ends - 1) // rows - first_tile + 1, 0)
    visit_ends = jnp.cumsum(of_group)
    most = pl.cdiv(num_rows, rows) + min(group_sizes.shape[0], num_rows)
    live = jnp.minimum(jnp.arange(most), jnp.maximum(visit_ends[-1] - 1, 0))
    group = jnp.minimum(jnp.searchsorted(visit_ends, live, side="right"), group_sizes.shape[0] - 1)
    tile = first_tile[group] + live - (visit_ends - of_group)[group]
    tile = jnp.clip(tile, 0, pl.cdiv(num_rows, rows) - 1)
    parts = ((first_expert + group) * products, tile, begins[group], ends[group])
    num_visits = jnp.maximum(visit_ends[-1], 1)
    return _Visits(*(part.astype(jnp.int32) for part in (*parts, num_visits)))


def _kernel(
    matrix: Ref,
    tile: Ref,
    begin: Ref,
    end: Ref,
    x: Ref,  # [rows, depth]
    values: Ref,  # [depth, columns]
    scales: Ref | None,  # [D / g, columns]
    out: Ref,  # [rows, columns]
    sums: Ref,  # [rows, columns] float32
    *,
    rows_per_scale: int | None,  # g
) -> None:
    visit, k = pl.program_id(1), pl.program_id(2)

    @pl.when(k == 0)
    def _() -> None:
        sums[...] = jnp.zeros_like(sums)

    depth = x.shape[1]
    step = depth if rows_per_scale is None else min(rows_per_scale, depth)
    for first in range(0, depth, step):
        part = _product(x[:, first : first + step], values[first : first + step, :])
        if scales is not None and rows_per_scale is not None:
            part *= scales[pl.ds(lax.div(k * depth + first, rows_per_scale), 1), :]
        sums[...] += part

    @pl.when(k == pl.num_programs(2) - 1)
    def _() -> None:
        row = tile[visit] * x.shape[0] + lax.broadcasted_iota(jnp.int32, out.shape, 0)
        mine = (row >= begin[visit]) & (row < end[visit])
        # In float32: a TPU v5e selects no narrower numbers.
        out[...] = jnp.where(mine, sums[...], out[...].astype(jnp.float32)).astype(out.dtype)


def _product(x: Array, values: Array) -> Array:
    if values.dtype in EIGHT_BITS:
        values = values.astype(jnp.float32).astype(x.dtype)
    precision = lax.Precision.HIGHEST if x.dtype == jnp.float32 else None
    return jnp.dot(x, values.astype(x.dtype), precision=precision, preferred_element_type=jnp.float32)


def _depth(d: int, rows_per_scale: int | None) -> int:
    """The most of D that one step multiplies: all of it, or a divisor that scales divide or that divides them."""
    if d <= MOST_DEPTH:
        return d
    for depth in range(MOST_DEPTH, 0, -LANES):
        if d % depth == 0 and (rows_per_scale is None or rows_per_scale % depth == 0 or depth % rows_per_scale == 0):
            return depth
    return d


def _cost(num_rows: int, matrices: ExpertMatrices, num_groups: int, dtype: DTypeLike) -> pl.CostEstimate:
    """As if every group had rows."""
    _, d, f = matrices.values.shape
    f *= matrices.products
    itemsize = jnp.dtype(dtype).itemsize
    read = num_groups * d * f * matrices.values.dtype.itemsize + num_rows * d * itemsize
    return pl.CostEstimate(flops=2 * num_rows * d * f, bytes_accessed=read + num_rows * f * itemsize, transcendentals=0)
