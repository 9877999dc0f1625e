"""Weights in 8 or 4 bits inside a program: how they lie, and the products that read them.

A weight W of a projection is summed over some of its dimensions (its rows, in the order of memory) and has the others
as columns. It is kept as

    values   the numbers, in a byte each, or two in a byte: rows 2i (low half) and 2i + 1 of the last summed dimension
    scales   float32; summed dimensions are 1, or, where rows share a scale in groups, the last of them is their count
    zeros    what stands for 0 in each group, where the numbers are not symmetric
    groups   the group of each row, where a group's rows do not lie together (GPTQ's desc_act)

    W = (values - zeros) * scales

The weight is never there in full. Accelerators fuse the conversion into the product. XLA:CPU would write the converted
weight out, and reads it ten times slower than it multiplies: there a block of rows is converted at a time, small enough
for the cache.
"""

import math
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import DTypeLike

from pallas_kernels.quantization import PACKED, Kind, decoded, dequantize, quantize

Activations = Literal["int8", "fp8"]

STORED: dict[Kind, Any] = {"int8": jnp.int8, "fp8": jnp.float8_e4m3fn, "int4": jnp.uint8, "fp4": jnp.uint8}
BLOCK_ROWS, MANY_TOKENS, LARGE_BLOCK_ROWS = 128, 128, 512  # converted at once; more where the sums are large too
LEAST_BLOCK_ROWS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightForm:
    """How one weight is kept. Static: part of the compiled program."""

    kind: Kind
    shape: tuple[int, ...]  # of the weight in its checkpoint, without a stack's L
    names: tuple[str | None, ...]  # the logical name of each of its dimensions
    summed: tuple[int, ...]  # its dimensions that a product sums over, next to each other
    group: int | None = None  # rows that share a scale, a divisor of the last summed dimension; None: all of them
    zeros: bool = False
    reordered: bool = False  # each row names its group
    blocked: bool = False  # products convert a block of rows at a time, as a CPU wants it
    activations: Activations | None = None  # products take these in 8 bits too

    @property
    def packed(self) -> bool:
        return self.kind in PACKED


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class QuantizedArray:
    """One weight, or a part of one along dimensions that are not summed."""

    values: Array
    scales: Array
    zeros: Array | None
    groups: Array | None
    form: WeightForm = field(metadata={"static": True})

    def __getitem__(self, index: Any) -> "QuantizedArray":
        """`index` names dimensions that come before the summed ones."""
        zeros = None if self.zeros is None else self.zeros[index]
        return QuantizedArray(self.values[index], self.scales[index], zeros, self.groups, self.form)

    def contract(self, spec: str, x: Array) -> Array:
        """einsum(spec, x, W), summed in float32, in x's dtype."""
        if not _is_matrix_product(spec, self.form):
            return _einsum(spec, x, self.wide(x.dtype)).astype(x.dtype)
        rows_dims = len(self.form.summed)
        columns = self.values.shape[rows_dims:]
        flat = x.reshape(*x.shape[: x.ndim - rows_dims], -1)
        out = self._matrix_product(flat.reshape(-1, flat.shape[-1]))
        return out.reshape(*flat.shape[:-1], *columns).astype(x.dtype)

    def wide(self, dtype: DTypeLike) -> Array:
        """W itself."""
        axis = self.form.summed[-1]
        numbers = _joined(self.values, self.form.kind, axis)
        if self.groups is not None:
            zeros = None if self.zeros is None else self._of_rows(self.zeros, self.groups)
            return self._apply(numbers, zeros, self._of_rows(self.scales, self.groups)).astype(dtype)
        grouped = self.scales.shape[axis]
        apart = (*numbers.shape[:axis], grouped, -1, *numbers.shape[axis + 1 :])
        zeros = None if self.zeros is None else jnp.expand_dims(self.zeros, axis + 1)
        scales = jnp.expand_dims(self.scales, axis + 1)
        return self._apply(numbers.reshape(apart), zeros, scales).reshape(numbers.shape).astype(dtype)

    def _matrix_product(self, x: Array) -> Array:
        """x [T, rows] -> [T, columns] float32."""
        if self.form.activations is not None:
            return self._eight_bit_product(x)
        if self.form.blocked:
            return self._blocked_product(x.astype(jnp.float32))
        if self.form.group is None and not self.form.zeros and not self.form.packed:
            values = self.values.reshape(x.shape[1], -1).astype(x.dtype)
            return jnp.dot(x, values, preferred_element_type=jnp.float32) * self.scales.reshape(1, -1)
        return jnp.dot(x, self.wide(x.dtype).reshape(x.shape[1], -1), preferred_element_type=jnp.float32)

    def _eight_bit_product(self, x: Array) -> Array:
        """Each row of x in 8 bits, under a scale of its own."""
        whole = self.form.activations == "int8"
        rows, scales = quantize(x, jnp.int8 if whole else jnp.float8_e4m3fn)
        values = self.values.reshape(x.shape[1], -1)
        sums = jnp.dot(rows, values, preferred_element_type=jnp.int32 if whole else jnp.float32)
        return dequantize(sums, scales) * self.scales.reshape(1, -1)

    def _blocked_product(self, x: Array) -> Array:
        tokens, rows = x.shape
        values = self.values.reshape(rows // 2 if self.form.packed else rows, -1)
        if self.form.kind == "fp8":  # XLA:CPU would slice these through float16
            values = lax.bitcast_convert_type(values, jnp.uint8)
        columns = values.shape[1]
        zeros, scales = (None if part is None else part.reshape(-1, columns) for part in (self.zeros, self.scales))
        assert scales is not None
        block = block_rows(tokens, rows, self.form)
        stored = block * values.shape[0] // rows  # rows of bytes in a block
        of_group = rows // scales.shape[0]
        groups = None if self.groups is None else self.groups.reshape(-1)
        scaled_inside = scales.shape[0] > 1
        slice_rows = partial(lax.dynamic_slice_in_dim, axis=0)

        def add_block(i: Array, total: Array) -> Array:
            part = slice_rows(values, i * stored, stored)
            some = lax.dynamic_slice_in_dim(x, i * block, block, axis=1)
            if groups is not None:
                mine = slice_rows(groups, i * block, block)
                of_block = [None if table is None else table[mine] for table in (zeros, scales)]
            elif scaled_inside:
                count = block // of_group
                of_block = [None if table is None else slice_rows(table, i * count, count) for table in (zeros, scales)]
            else:
                of_block = [zeros, None]
            return total + _block_product(some, part, self.form.kind, *of_block)

        total = lax.fori_loop(0, rows // block, add_block, jnp.zeros((tokens, columns), jnp.float32))
        return total if scaled_inside or groups is not None else total * scales

    def _apply(self, numbers: Array, zeros: Array | None, scales: Array) -> Array:
        wide = numbers.astype(jnp.float32)
        return (wide if zeros is None else wide - zeros) * scales

    def _of_rows(self, table: Array, groups: Array) -> Array:
        """`table` of groups, spread over the rows, which come first."""
        dims = len(self.form.summed)
        return table.reshape(-1, *table.shape[dims:])[groups]


def block_rows(tokens: int, rows: int, form: WeightForm) -> int:
    """A divisor of `rows`, of whole groups, near what a cache holds; all rows where there is none worth a loop."""
    unit = math.lcm(1 if form.group is None or form.reordered else form.group, 2)
    most = max(unit, BLOCK_ROWS if tokens <= MANY_TOKENS else LARGE_BLOCK_ROWS)
    fitting = [size for size in range(unit, min(most, rows) + 1, unit) if rows % size == 0]
    return fitting[-1] if fitting and fitting[-1] >= LEAST_BLOCK_ROWS else rows


def _joined(values: Array, kind: Kind, axis: int) -> Array:
    parts = decoded(values, kind)
    if len(parts) == 1:
        return parts[0]
    shape = (*values.shape[:axis], 2 * values.shape[axis], *values.shape[axis + 1 :])
    return jnp.stack(parts, axis + 1).reshape(shape)


def _block_product(x: Array, values: Array, kind: Kind, zeros: Array | None, scales: Array | None) -> Array:
    """x [T, rows] times a block [rows, columns] under its groups' zeros and scales [groups or rows, columns]."""
    total = None
    parts = decoded(values, kind)
    for i, part in enumerate(parts):

        def over_groups(table: Array, i: int = i, part: Array = part) -> Array:
            if table.shape[0] == x.shape[1]:
                return table[i :: len(parts)]
            apart = jnp.broadcast_to(table[:, None], (table.shape[0], part.shape[0] // table.shape[0], part.shape[1]))
            return apart.reshape(part.shape)

        wide = part if zeros is None else part - over_groups(zeros.astype(jnp.float32))
        wide = wide if scales is None else wide * over_groups(scales)
        product = jnp.dot(x[:, i :: len(parts)], wide, preferred_element_type=jnp.float32)
        total = product if total is None else total + product
    assert total is not None
    return total


def _is_matrix_product(spec: str, form: WeightForm) -> bool:
    """Whether `spec` is tokens x rows times rows x columns, but for how the dimensions are counted."""
    (x, weight), out = spec.split("->")[0].split(","), spec.split("->")[1]
    count = len(form.summed)
    if form.summed != tuple(range(count)):
        return False
    lead = x[: len(x) - count]
    return x == lead + weight[:count] and out == lead + weight[count:] and not set(lead) & set(weight)


def _einsum(spec: str, x: Array, weight: Array) -> Array:
    return jnp.einsum(spec, x, weight, preferred_element_type=jnp.float32)
