"""Grouped matmul in plain jnp: the truth for the other bodies, and what a CPU runs.

A loop over the tiles of rows that exist, each within one group: work follows the rows, not experts x rows, and an
expert without rows is not touched. A tile may run past its group's end; its surplus rows are overwritten by the tiles
that follow, which is why the order of tiles is the order of rows.
"""

import jax.numpy as jnp
from jax import Array, lax
from jax.typing import DTypeLike

from pallas_kernels.grouped import ExpertMatrices, ExpertWeights, expert_matrices, group_tiles
from pallas_kernels.quantization import Packed, decoded

LEAST_ROWS, MOST_ROWS = 8, 128  # of a tile; a product of fewer rows is no faster on a CPU


def grouped_matmul(
    x: Array,  # [M, D], expert after expert
    weights: ExpertWeights,  # [E, D, F] or [E, N, D, F]
    group_sizes: Array,  # [experts that have groups] int32, sum at most M
    *,
    first_expert: Array | int = 0,
    preferred_element_type: DTypeLike | None = None,
) -> Array:
    """x's rows times their experts' matrices, summed in float32: [M, N * F] (see `pallas_kernels.grouped`)."""
    matrices = expert_matrices(weights)
    products, f = matrices.products, matrices.values.shape[2]
    m = x.shape[0]
    out_dtype = x.dtype if preferred_element_type is None else preferred_element_type
    rows = _tile_rows(m, group_sizes.shape[0])
    tiles = group_tiles(group_sizes, m, rows)
    x = jnp.pad(x, ((0, rows), (0, 0)))

    def tile(t: Array, out: Array) -> Array:
        row = tiles.first_row[t]
        block = lax.dynamic_slice_in_dim(x, row, rows)
        for n in range(products):
            matrix = (tiles.expert[t] + first_expert) * products + n
            out = lax.dynamic_update_slice(out, _product(block, matrices, matrix).astype(out_dtype), (row, n * f))
        return out

    return lax.fori_loop(0, tiles.num_tiles, tile, jnp.zeros((m + rows, products * f), out_dtype))[:m]


def refusal(weights: ExpertWeights, dtype: DTypeLike) -> str | None:
    """Why this body cannot multiply rows of `dtype` by such weights: there is nothing that it cannot do."""
    return None


def _product(x: Array, matrices: ExpertMatrices, matrix: Array) -> Array:
    """x [rows, D] times one matrix, float32."""
    values = matrices.values[matrix]
    if matrices.scales is None:
        return jnp.dot(x, values, preferred_element_type=jnp.float32)
    scales = matrices.scales[matrix]
    if matrices.packed is not None:
        return _packed_product(x, values, scales, matrices.packed)
    if scales.shape[0] == 1:
        return jnp.dot(x, values.astype(x.dtype), preferred_element_type=jnp.float32) * scales
    # Per group of rows: sums of one group are scaled before they are added to another's.
    groups = x.reshape(x.shape[0], scales.shape[0], -1), values.reshape(scales.shape[0], -1, values.shape[1])
    sums = jnp.einsum("mgd,gdf->gmf", groups[0], groups[1].astype(x.dtype), preferred_element_type=jnp.float32)
    return jnp.einsum("gmf,gf->mf", sums, scales)


def _packed_product(x: Array, values: Array, scales: Array, packed: Packed) -> Array:
    """x [rows, D] times [D/2, F] bytes under scales [groups, F]: the even rows and the odd ones, each as a product."""

    def half(i: int, part: Array) -> Array:
        wide = (part.reshape(scales.shape[0], -1, part.shape[1]) * scales[:, None]).reshape(part.shape)
        return jnp.dot(x[:, i::2], wide.astype(x.dtype), preferred_element_type=jnp.float32)

    even, odd = decoded(values, packed)
    return half(0, even) + half(1, odd)


def _tile_rows(num_rows: int, num_groups: int) -> int:
    """The power of two above the rows that a group has on average."""
    average = -(-num_rows // num_groups)
    return min(max(1 << (average - 1).bit_length(), LEAST_ROWS), MOST_ROWS)
