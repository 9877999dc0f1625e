"""A weight with the low-rank updates of many adapters beside it, and the product that gives each token its own.

    y = x W + x A[s] B[s]        s: the slot of the token's adapter (Hu et al., LoRA, arXiv 2106.09685)

Tokens are sorted by slot and both products are grouped matmuls: work follows the tokens that have an adapter, a slot
that no token has is not read, and W is read once for all of them (Chen et al., Punica, arXiv 2310.18547).
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import Mesh, PartitionSpec

from models.quantized_array import QuantizedArray
from pallas_kernels.grouped import GroupedMatmul
from pallas_kernels.reference.grouped_matmul import grouped_matmul as reference_matmul
from sharding.rules import RULES, spec_of

Names = tuple[str | None, ...]


class AdapterRows(NamedTuple):
    """The tokens of a step sorted by slot; those without an adapter come last. With data shards each sorts its own,
    and numbers count within the shard."""

    tokens: Array  # [T] int32: the token in each place
    places: Array  # [T] int32: the place of each token
    group_sizes: Array  # [shards * slots] int32: tokens of each slot


@dataclass(frozen=True, slots=True)
class AdapterProduct:
    """x A[s] B[s] of each token, on a mesh: A is split as the rows of its weight are, B as the columns are."""

    mesh: Mesh
    matmul: GroupedMatmul = field(default=reference_matmul)

    def __call__(
        self, x: Array, down: Array, up: Array, rows: AdapterRows, row_names: Names, column_names: Names
    ) -> Array:
        """x [T, *rows], down [slots, *rows, R], up [slots, R, *columns] -> [T, *columns] float32; zeros for a token
        without an adapter."""
        if self.mesh.devices.size == 1:
            return self._local(x, down, up, *rows, axes=())
        tokens = spec_of(("tokens",))
        split = jax.shard_map(
            lambda *arrays: self._local(*arrays, axes=_axes_of(row_names)),
            mesh=self.mesh,
            in_specs=(
                PartitionSpec(*tokens, *spec_of(row_names)),
                PartitionSpec(None, *spec_of(row_names), None),
                PartitionSpec(None, None, *spec_of(column_names)),
                tokens,
                tokens,
                tokens,
            ),
            out_specs=PartitionSpec(*tokens, *spec_of(column_names)),
            check_vma=False,
        )
        return split(x, down, up, *rows)

    def _local(
        self, x: Array, down: Array, up: Array, tokens: Array, places: Array, group_sizes: Array, axes: tuple[str, ...]
    ) -> Array:
        """On one device; `axes` are those of the mesh that split the rows."""
        slots, rank = down.shape[0], down.shape[-1]
        here = (jnp.arange(tokens.shape[0]) < group_sizes.sum())[:, None]
        flat = x.reshape(x.shape[0], -1)[tokens]
        low = self.matmul(flat, down.reshape(slots, -1, rank), group_sizes, preferred_element_type=jnp.float32)
        low = jnp.where(here, low, 0)  # what lies beyond the groups is undefined, and may not be summed
        if axes:
            low = lax.psum(low, axes)
        columns = up.shape[2:]
        out = self.matmul(
            low.astype(x.dtype), up.reshape(slots, rank, -1), group_sizes, preferred_element_type=jnp.float32
        )
        return jnp.where(here, out, 0)[places].reshape(x.shape[0], *columns)


@dataclass(frozen=True, slots=True)
class AdaptedArray:
    """What `weight[...]` gives inside a program whose batch has adapters. See `layers.contract`."""

    weight: Array | QuantizedArray
    down: Array  # [slots, *rows, R]
    up: Array  # [slots, R, *columns], times the adapter's scale
    rows: AdapterRows
    names: tuple[Names, Names]  # of the weight's rows, and of its columns
    product: AdapterProduct

    def added(self, x: Array, out: Array) -> Array:
        """`out`, the product of x [T, *rows] with the weight itself, and each token's update."""
        update = self.product(x, self.down, self.up, self.rows, *self.names)
        return (out + update.reshape(out.shape)).astype(out.dtype)


def _axes_of(names: Names) -> tuple[str, ...]:
    """The mesh axes that split dimensions of these names."""
    return tuple(axis for name in names if name is not None for axis in RULES[name].axes)
