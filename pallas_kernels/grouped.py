"""What a grouped matmul takes: rows that lie expert after expert, and a matrix for each expert.

    group_sizes     3           0   5                   2
    rows of x     | a   a   a |   | c   c   c   c   c | d   d | no expert's |
    out           | a W[0]    |   | c W[2]            | d W[3]| undefined   |

The rows beyond sum(group_sizes) are undefined in the result, NaN included: whoever reads them selects, and does not
multiply by zero. Experts whose group is empty are not read.

Weights are [E, D, F], or [E, N, D, F] for N products of the same rows in one call: the gate and the up of a gated MLP,
whose results lie side by side. N comes before D, and not beside F, because a TPU tiles an array's last two dimensions:
there [E, D, 2, F] would be copied on its way to [E, D, 2F].

A stack of layers is passed whole, [L * E, D, F], with `first_expert` = layer * E: a kernel reads its operand where it
lies, and a layer sliced out for it would be a copy of that layer.
"""

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from pallas_kernels.quantization import Packed


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class QuantizedExperts:
    """Weights in 8 bits, or in 4: a weight is values * scale."""

    values: Array  # [E, D, F] or [E, N, D, F], int8 | float8_e4m3fn; D/2 for D, uint8, where two rows lie in a byte
    scales: Array  # float32; [E, F] or [E, N, F] of a column, or [E, D/g, F] or [E, N, D/g, F] of g rows of a column
    packed: Packed | None = field(default=None, metadata={"static": True})  # what a byte holds two of


ExpertWeights = Array | QuantizedExperts


class GroupedMatmul(Protocol):
    """x's rows times their experts' matrices, summed in float32: [M, N * F], in x's dtype or the preferred one."""

    def __call__(
        self,
        x: Array,  # [M, D], expert after expert
        weights: ExpertWeights,  # [E, D, F] or [E, N, D, F]
        group_sizes: Array,  # [experts that have groups] int32, sum at most M
        *,
        first_expert: Array | int = 0,  # whose rows the first group is
        preferred_element_type: DTypeLike | None = None,
    ) -> Array: ...


class ExpertShape(NamedTuple):
    """The numbers of some weights, which may be jax.ShapeDtypeStructs."""

    experts: int  # E
    products: int  # N
    d: int
    f: int
    dtype: jnp.dtype  # of the values
    rows_per_scale: int | None  # g; D for a scale of a whole column, None for weights without scales


class ExpertMatrices(NamedTuple):
    """Weights in the one form that bodies compute with: expert e's product n is matrix e * N + n."""

    values: Array  # [E * N, D, F], or [E * N, D/2, F]
    scales: Array | None  # [E * N, D/g, F]
    products: int  # N
    rows_per_scale: int | None
    packed: Packed | None = None


def expert_shape(weights: ExpertWeights) -> ExpertShape:
    """Raises ValueError for weights and scales that do not fit each other."""
    values = weights.values if isinstance(weights, QuantizedExperts) else weights
    if values.ndim not in (3, 4):
        raise ValueError(f"expert weights are [E, D, F] or [E, N, D, F], not {list(values.shape)}")
    *lead, d, f = values.shape
    rows_per_scale = None
    if isinstance(weights, QuantizedExperts):
        d = d if weights.packed is None else 2 * d
        scales = list(weights.scales.shape)
        if len(scales) == values.ndim - 1:
            scales.insert(-1, 1)
        if len(scales) != values.ndim or [*scales[:-2], scales[-1]] != [*lead, f] or d % max(scales[-2], 1):
            raise ValueError(f"scales {list(weights.scales.shape)} do not fit weights {list(values.shape)}")
        rows_per_scale = d // scales[-2]
    return ExpertShape(lead[0], lead[1] if len(lead) == 2 else 1, d, f, jnp.dtype(values.dtype), rows_per_scale)


def expert_matrices(weights: ExpertWeights) -> ExpertMatrices:
    """Raises ValueError as `expert_shape` does."""
    _, products, d, f, _, rows_per_scale = expert_shape(weights)
    if not isinstance(weights, QuantizedExperts):
        return ExpertMatrices(weights.reshape(-1, d, f), None, products, None)
    assert rows_per_scale is not None
    scales = weights.scales.reshape(-1, d // rows_per_scale, f)
    values = weights.values.reshape(-1, *weights.values.shape[-2:])
    return ExpertMatrices(values, scales, products, rows_per_scale, weights.packed)


def quantized_experts(weights: Array, dtype: DTypeLike, rows_per_scale: int | None = None) -> QuantizedExperts:
    """[..., D, F] in 8 bits: the largest weight that shares a scale takes the largest number of `dtype`.

    `rows_per_scale` (g) must divide D; None is one scale for a whole column. Raises ValueError for a dtype other than
    int8 and float8_e4m3fn, or a g that does not divide D.
    """
    dtype = jnp.dtype(dtype)
    if dtype not in (jnp.dtype(jnp.int8), jnp.dtype(jnp.float8_e4m3fn)):
        raise ValueError(f"experts are quantized to int8 or float8_e4m3fn, not {dtype}")
    *lead, d, f = weights.shape
    group = d if rows_per_scale is None else rows_per_scale
    if group < 1 or d % group:
        raise ValueError(f"{group} rows a scale do not divide D = {d}")
    whole = dtype == jnp.dtype(jnp.int8)
    largest = 127.0 if whole else float(jnp.finfo(dtype).max)
    wide = weights.astype(jnp.float32).reshape(*lead, d // group, group, f)
    scales = jnp.maximum(jnp.abs(wide).max(axis=-2), 1e-30) / largest
    ratio = jnp.clip(wide / scales[..., None, :], -largest, largest)
    values = (jnp.round(ratio) if whole else ratio).astype(dtype).reshape(weights.shape)
    return QuantizedExperts(values, scales[..., 0, :] if rows_per_scale is None else scales)


class GroupTiles(NamedTuple):
    """Tiles of `rows` rows, each within one group: tile t is rows first_row[t] .. first_row[t] + num_rows[t]."""

    expert: Array  # [tiles] int32; the last live tile's beyond `num_tiles`
    first_row: Array  # [tiles] int32
    num_rows: Array  # [tiles] int32; 0 beyond `num_tiles`
    num_tiles: Array  # [] int32: tiles that have rows


def most_group_tiles(num_rows: int, num_groups: int, rows: int) -> int:
    """No group sizes make more tiles of `rows` rows than this."""
    return num_rows // rows + min(num_groups, num_rows)


def group_tiles(group_sizes: Array, num_rows: int, rows: int) -> GroupTiles:
    """The tiles that cover every group [E] of `num_rows` rows in all, in the order of the rows."""
    tiles_of = (group_sizes + rows - 1) // rows
    ends = jnp.cumsum(tiles_of)
    tile = jnp.arange(max(1, most_group_tiles(num_rows, group_sizes.shape[0], rows)), dtype=jnp.int32)
    live = jnp.minimum(tile, jnp.maximum(ends[-1] - 1, 0))
    expert = jnp.minimum(jnp.searchsorted(ends, live, side="right"), group_sizes.shape[0] - 1).astype(jnp.int32)
    within = (live - (ends - tiles_of)[expert]) * rows
    num = jnp.where(tile < ends[-1], jnp.clip(group_sizes[expert] - within, 0, rows), 0)
    first = (jnp.cumsum(group_sizes) - group_sizes)[expert] + within
    return GroupTiles(expert, first.astype(jnp.int32), num.astype(jnp.int32), ends[-1].astype(jnp.int32))
