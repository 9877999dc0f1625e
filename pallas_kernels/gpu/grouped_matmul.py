"""Grouped matmul for Hopper (sm_90a), in Mosaic GPU.

One program per SM walks over work units; a unit is a tile of at most `rows` rows of one expert, times a block of
columns of its matrix. One warpgroup fetches; the others multiply, each its own columns of the block:

    x in GMEM -------TMA--> ring in SMEM ----------------------------wgmma--> sums [columns, rows] in registers
    matrix in GMEM --TMA--> ring in SMEM --(8 bits: through registers)---^

The operands are swapped, out^T = W^T x^T: the columns of the matrix are the M of a wgmma, which is never less than 64,
and the rows of an expert its N, which may be 8. So one kernel serves decode and prefill, and differs in its sizes.

Tiles begin where groups begin. A tile that ends inside 8 rows stores the whole eights in place; its last rows, fewer
than 8, go to a place of their own, [E, 8, N * F], and are put in place afterwards: a swizzled tile leaves SMEM by
eights, and the rows that follow belong to another expert.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import DTypeLike

from pallas_kernels.gpu.hopper import SHARED_MEMORY, STREAMING_MULTIPROCESSORS, WGMMA_M, Ref, accumulator, load
from pallas_kernels.grouped import ExpertMatrices, ExpertWeights, expert_matrices, expert_shape, group_tiles

DEPTH = 64  # of D, in one step: a row of it fills the swizzle of 128 bytes
EIGHT = 8  # rows that leave SMEM together
LEAST_COLUMNS = WGMMA_M
MOST_ROWS = 128
MOST_STEPS = 8
BARRIERS = 2_048  # bytes of shared memory, kept for barriers and alignment
FETCHING_REGISTERS = 40
MULTIPLYING_REGISTERS = {1: 232, 2: 232, 3: 152}  # by warpgroups: 65,536 registers, 128 threads each
BFLOAT16 = jnp.dtype(jnp.bfloat16)
EIGHT_BITS = (jnp.dtype(jnp.int8), jnp.dtype(jnp.float8_e4m3fn))

# The columns of the work list.
MATRIX, ROW, COUNT, GROUP = range(4)


@dataclass(frozen=True)
class GroupedSizes:
    """How a kernel call is cut. The derived ones fit shared memory; others may be faster."""

    rows: int  # of a tile: 8, 16, 32, 64 or 128
    warpgroups: int  # that multiply
    columns: int  # of each of them: 64 or 128
    steps: int  # slots of the ring
    band: int = 8  # tiles that walk over the columns together, so that a matrix is read once for all of them
    programs: int = STREAMING_MULTIPROCESSORS

    @property
    def block(self) -> int:
        """Columns of one unit."""
        return self.warpgroups * self.columns

    @staticmethod
    def derived(num_rows: int, num_groups: int, matrices: ExpertMatrices) -> GroupedSizes:
        """Tiles twice as large as groups are on average, as their sizes scatter; as many columns as divide F."""
        average = -(-num_rows // num_groups)
        rows = min(max(1 << (2 * average - 1).bit_length(), EIGHT), MOST_ROWS)
        narrow = matrices.scales is not None
        shapes = [(2, 128), (3, 64), (2, 64), (1, 64)]
        f, itemsize = matrices.values.shape[2], matrices.values.dtype.itemsize
        warpgroups, columns = next(
            (w, c) for w, c in shapes if f % (w * c) == 0 and not (narrow and c == 128 and rows > 64)
        )
        block = warpgroups * columns
        kept = rows * block * 2 + (2 * DEPTH * block * 2 if narrow else 0)
        step = DEPTH * (rows * 2 + block * itemsize)
        return GroupedSizes(rows, warpgroups, columns, min((SHARED_MEMORY - BARRIERS - kept) // step, MOST_STEPS))


def refusal(weights: ExpertWeights, dtype: DTypeLike) -> str | None:
    """Why this body cannot multiply rows of `dtype` by such weights: a sentence, or None if it can."""
    shape, rows = expert_shape(weights), jnp.dtype(dtype)
    if rows != BFLOAT16:
        return f"the GPU grouped matmul takes rows in bfloat16, not {rows}"
    if shape.rows_per_scale is None and shape.dtype != BFLOAT16:
        return f"the GPU grouped matmul takes weights in bfloat16, or scaled int8 or float8_e4m3fn, not {shape.dtype}"
    if shape.rows_per_scale is not None and shape.dtype not in EIGHT_BITS:
        return f"the GPU grouped matmul takes scaled weights in int8 or float8_e4m3fn, not {shape.dtype}"
    if shape.d % DEPTH or shape.f % LEAST_COLUMNS:
        return f"the GPU grouped matmul takes D and F in multiples of {LEAST_COLUMNS}, not {shape.d} and {shape.f}"
    if shape.rows_per_scale is not None and shape.rows_per_scale % DEPTH:
        return f"the GPU grouped matmul takes scales of {DEPTH} rows or multiples, not {shape.rows_per_scale}"
    return None


def grouped_matmul(
    x: Array,  # [M, D] bfloat16, expert after expert
    weights: ExpertWeights,  # [E, D, F] or [E, N, D, F]
    group_sizes: Array,  # [experts that have groups] int32, sum at most M
    *,
    first_expert: Array | int = 0,
    preferred_element_type: DTypeLike | None = None,  # bfloat16
    sizes: GroupedSizes | None = None,
) -> Array:
    """x's rows times their experts' matrices, summed in float32: [M, N * F] (see `pallas_kernels.grouped`).

    Raises ValueError for what `refusal` names, and for another type of result than bfloat16.
    """
    m = x.shape[0]
    reason = refusal(weights, x.dtype)
    if reason is None and preferred_element_type not in (None, BFLOAT16):
        reason = f"the GPU grouped matmul returns bfloat16, not {jnp.dtype(preferred_element_type)}"
    if reason is not None:
        raise ValueError(reason)
    matrices = expert_matrices(weights)
    sizes = sizes or GroupedSizes.derived(m, group_sizes.shape[0], matrices)
    tiles = group_tiles(group_sizes, m, sizes.rows)
    matrix = (tiles.expert + jnp.asarray(first_expert, jnp.int32)) * matrices.products
    units = jnp.stack([matrix, tiles.first_row, tiles.num_rows, tiles.expert], axis=1)
    # A tile of rows must fit into x; beyond x's end it reads zeros.
    x = jnp.pad(x, ((0, max(sizes.rows - m, 0)), (0, 0)))
    out, tails = _Grouped.of(x, matrices, sizes).call(
        x, units, tiles.num_tiles.reshape(1), matrices, group_sizes.shape[0]
    )
    return _with_tails(out, tails, group_sizes)[:m]


def _with_tails(out: Array, tails: Array, group_sizes: Array) -> Array:
    """out [M, N * F], with the rows of each group beyond its last whole eight from tails [E, 8, N * F]."""
    rest = (group_sizes % EIGHT)[:, None]
    row = (jnp.cumsum(group_sizes)[:, None] - rest) + jnp.arange(EIGHT)
    row = jnp.where(jnp.arange(EIGHT) < rest, row, out.shape[0])  # dropped
    return out.at[row.reshape(-1)].set(tails.reshape(-1, out.shape[1]), mode="drop")


def _swizzled(dtype: jnp.dtype) -> tuple[Any, ...]:
    """64 numbers to a swizzled row, in 16 bits and in 8: the columns of a warpgroup are whole rows of that."""
    return plgpu.TilingTransform((EIGHT, 64)), plgpu.SwizzleTransform(64 * dtype.itemsize)


@dataclass(frozen=True)
class _Unit:
    """One work unit as a program sees it."""

    matrix: Array
    column: Array  # in the matrix
    out_column: Array
    row: Array
    count: Array
    group: Array


@dataclass(frozen=True)
class _Refs:
    x: Ref
    units: Ref  # [tiles, 4]
    tiles: Ref  # [1]: how many there are
    values: Ref  # [matrices, D, F]
    scales: Ref | None  # [matrices, D / g, F]
    out: Ref
    tails: Ref
    rows: Ref  # [steps, rows, DEPTH]
    blocks: Ref  # [steps, warpgroups, DEPTH, columns]
    staged: Ref  # [warpgroups, rows, columns]: results on their way out
    ready: Ref  # [steps]
    free: Ref  # [steps]
    wide: Ref | None = None  # [warpgroups, 2, DEPTH, columns]: 8-bit blocks in bfloat16


@dataclass(frozen=True)
class _Grouped:
    """Everything about one call that is known when it is traced; its methods are the kernel."""

    sizes: GroupedSizes
    d: int
    f: int
    products: int
    dtype: jnp.dtype
    rows_per_scale: int | None  # None: no scales

    @staticmethod
    def of(x: Array, matrices: ExpertMatrices, sizes: GroupedSizes) -> _Grouped:
        _, d, f = matrices.values.shape
        if f % sizes.block:
            raise ValueError(f"{sizes.block} columns a block do not divide F = {f}")
        return _Grouped(sizes, d, f, matrices.products, matrices.values.dtype, matrices.rows_per_scale)

    @property
    def scaled_at_once(self) -> bool:
        """One scale for a whole column: it multiplies the sum."""
        return self.rows_per_scale == self.d

    def call(self, x: Array, units: Array, tiles: Array, matrices: ExpertMatrices, groups: int) -> tuple[Array, Array]:
        operands = [x, units, tiles, matrices.values, *([] if matrices.scales is None else [matrices.scales])]

        def grouped_products(*refs: Ref, **scratch: Ref) -> None:
            ins, (out, tails) = list(refs[:-2]), refs[-2:]
            scales = ins.pop() if self.rows_per_scale is not None else None
            self.run(_Refs(*ins, scales=scales, out=out, tails=tails, **scratch))

        width = self.products * self.f
        out, tails = plgpu.kernel(
            grouped_products,
            out_type=[
                jax.ShapeDtypeStruct((x.shape[0], width), BFLOAT16),
                jax.ShapeDtypeStruct((groups, EIGHT, width), BFLOAT16),
            ],
            scratch_types=self.scratch(),
            grid=(self.sizes.programs,),
            grid_names=("program",),
            num_threads=self.sizes.warpgroups + 1,
            thread_name="warpgroup",
            compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Lane),
        )(*operands)
        return out, tails

    def scratch(self) -> dict[str, Any]:
        rows, warpgroups = self.sizes.rows, self.sizes.warpgroups
        columns, steps = self.sizes.columns, self.sizes.steps
        wide = _swizzled(BFLOAT16)
        types = {
            "rows": plgpu.SMEM((steps, rows, DEPTH), BFLOAT16, transforms=wide),
            "blocks": plgpu.SMEM((steps, warpgroups, DEPTH, columns), self.dtype, transforms=_swizzled(self.dtype)),
            "staged": plgpu.SMEM((warpgroups, rows, columns), BFLOAT16, transforms=wide),
            "ready": plgpu.Barrier(num_arrivals=1 + warpgroups, num_barriers=steps),
            "free": plgpu.Barrier(num_arrivals=warpgroups, num_barriers=steps),
        }
        if self.rows_per_scale is not None:
            types["wide"] = plgpu.SMEM((warpgroups, 2, DEPTH, columns), BFLOAT16, transforms=wide)
        return types

    def run(self, refs: _Refs) -> None:
        warpgroup, fetching = lax.axis_index("warpgroup"), self.sizes.warpgroups

        @pl.when(warpgroup < fetching)
        def _() -> None:
            plgpu.set_max_registers(MULTIPLYING_REGISTERS[fetching], action="increase")
            self.for_each_unit(refs, lambda unit, step: self.multiply(refs, unit, step, warpgroup))
            plgpu.wait_smem_to_gmem(0)

        @pl.when(warpgroup == fetching)
        def _() -> None:
            plgpu.set_max_registers(FETCHING_REGISTERS, action="decrease")
            steps = self.for_each_unit(refs, lambda unit, step: self.fetch(refs, unit, step))
            # A warpgroup that waits on a barrier has to see all of its phases, so the last release of each slot too.
            used = jnp.minimum(steps, self.sizes.steps)
            lax.fori_loop(0, used, lambda slot, _: plgpu.barrier_wait(refs.free.at[slot]), None)

    def for_each_unit(self, refs: _Refs, work: Callable[[_Unit, Array], None]) -> Array:
        """Runs `work` with each unit of this program and the steps before it. Returns the steps of all."""
        programs, program = self.sizes.programs, lax.axis_index("program")
        total = refs.tiles[0] * self.column_blocks
        mine = jnp.maximum(lax.div(total - program + programs - 1, jnp.int32(programs)), 0)

        def one(turn: Array, step: Array) -> Array:
            work(self.unit(refs, program + turn * programs), step)
            return step + self.d // DEPTH

        return lax.fori_loop(0, mine, one, jnp.int32(0))

    @property
    def column_blocks(self) -> int:
        """Of all products."""
        return self.products * self.f // self.sizes.block

    def unit(self, refs: _Refs, index: Array) -> _Unit:
        """Unit `index` in an order that goes over the columns once for every band of tiles."""
        band, columns = self.sizes.band, self.column_blocks
        first = lax.div(index, jnp.int32(band * columns)) * band
        within = index - first * columns
        together = jnp.minimum(refs.tiles[0] - first, band)
        tile, block = first + lax.rem(within, together), lax.div(within, together)
        blocks = jnp.int32(self.f // self.sizes.block)
        return _Unit(
            matrix=refs.units[tile, MATRIX] + lax.div(block, blocks),
            column=lax.rem(block, blocks) * self.sizes.block,
            out_column=block * self.sizes.block,
            row=refs.units[tile, ROW],
            count=refs.units[tile, COUNT],
            group=refs.units[tile, GROUP],
        )

    # The fetching warpgroup.

    def fetch(self, refs: _Refs, unit: _Unit, before: Array) -> None:
        rows, columns, steps = self.sizes.rows, self.sizes.columns, self.sizes.steps

        def one(k: Array, _: None) -> None:
            step = before + k
            slot = lax.rem(step, jnp.int32(steps))
            pl.when(step >= steps)(lambda: plgpu.barrier_wait(refs.free.at[slot]))
            depth = pl.ds(k * DEPTH, DEPTH)
            plgpu.copy_gmem_to_smem(refs.x.at[pl.ds(unit.row, rows), depth], refs.rows.at[slot], refs.ready.at[slot])
            for w in range(self.sizes.warpgroups):
                source = refs.values.at[unit.matrix, depth, pl.ds(unit.column + w * columns, columns)]
                plgpu.copy_gmem_to_smem(source, refs.blocks.at[slot, w], refs.ready.at[slot])

        lax.fori_loop(0, self.d // DEPTH, one, None)

    # The multiplying warpgroups.

    def multiply(self, refs: _Refs, unit: _Unit, before: Array, warpgroup: Array) -> None:
        sums = pl.run_scoped(
            lambda sums: self.sum_up(refs, unit, before, warpgroup, sums),
            accumulator(self.sizes.columns, self.sizes.rows),
        )
        if self.scaled_at_once:
            scale = self.scales_of(refs, unit, warpgroup, jnp.int32(0), plgpu.Layout.WGMMA.reduce(1))
            sums = sums * lax.broadcast_in_dim(scale, sums.shape, [0])
        self.store(refs, unit, warpgroup, sums.astype(BFLOAT16))

    def sum_up(self, refs: _Refs, unit: _Unit, before: Array, warpgroup: Array, sums: Ref) -> Array:
        """[columns, rows] float32."""
        steps = jnp.int32(self.sizes.steps)

        def one(k: Array, _: None) -> None:
            slot = lax.rem(before + k, steps)
            block = self.block(refs, unit, warpgroup, k, slot)
            plgpu.wgmma(sums, plgpu.transpose_ref(block, (1, 0)), plgpu.transpose_ref(refs.rows.at[slot], (1, 0)))
            plgpu.wgmma_wait(1)
            pl.when(k > 0)(lambda: plgpu.barrier_arrive(refs.free.at[lax.rem(before + k - 1, steps)]))

        last = self.d // DEPTH - 1
        lax.fori_loop(0, last + 1, one, None)
        plgpu.wgmma_wait(0)
        plgpu.barrier_arrive(refs.free.at[lax.rem(before + last, steps)])
        return sums[...]

    def block(self, refs: _Refs, unit: _Unit, warpgroup: Array, k: Array, slot: Array) -> Ref:
        """[DEPTH, columns] of the matrix in bfloat16, when it has arrived."""
        if self.rows_per_scale is None:
            plgpu.barrier_wait(refs.ready.at[slot])
            return refs.blocks.at[slot, warpgroup]
        scale = None
        if not self.scaled_at_once:
            row = lax.div(k * DEPTH, jnp.int32(self.rows_per_scale))
            scale = self.scales_of(refs, unit, warpgroup, row, plgpu.Layout.WGMMA.reduce(0))
        plgpu.barrier_wait(refs.ready.at[slot])
        # Two of them in turn: the product before the last is done, and its block can be overwritten.
        assert refs.wide is not None  # 8-bit weights have it
        wide = refs.wide.at[warpgroup, lax.rem(k, 2)]
        raw = load(refs.blocks.at[slot, warpgroup], plgpu.Layout.WGMMA, optimized=False)
        values = raw.astype(jnp.float32)
        if scale is not None:
            values = values * lax.broadcast_in_dim(scale, values.shape, [1])
        wide[...] = values.astype(BFLOAT16)
        plgpu.commit_smem()
        return wide

    def scales_of(self, refs: _Refs, unit: _Unit, warpgroup: Array, row: Array, layout: Any) -> Array:
        """[columns] of this warpgroup."""
        columns = pl.ds(unit.column + warpgroup * self.sizes.columns, self.sizes.columns)
        assert refs.scales is not None  # so do they
        return load(refs.scales.at[unit.matrix, row, columns], layout, optimized=False)

    def store(self, refs: _Refs, unit: _Unit, warpgroup: Array, sums: Array) -> None:
        rows, staged = self.sizes.rows, refs.staged.at[warpgroup]
        columns = pl.ds(unit.out_column + warpgroup * self.sizes.columns, self.sizes.columns)
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
        turned = plgpu.transpose_ref(staged, (1, 0))
        turned[...] = plgpu.layout_cast(sums, plgpu.Layout.WGMMA_TRANSPOSED)
        plgpu.commit_smem()
        whole = unit.count == rows

        @pl.when(whole)
        def _() -> None:
            plgpu.copy_smem_to_gmem(staged, refs.out.at[pl.ds(unit.row, rows), columns])

        for first in range(0, rows, EIGHT):
            eight = staged.at[pl.ds(first, EIGHT)]
            left = unit.count - first

            @pl.when(jnp.logical_not(whole) & (left >= EIGHT))
            def _(eight: Ref = eight, first: int = first) -> None:
                plgpu.copy_smem_to_gmem(eight, refs.out.at[pl.ds(unit.row + first, EIGHT), columns])

            @pl.when((left > 0) & (left < EIGHT))
            def _(eight: Ref = eight) -> None:
                plgpu.copy_smem_to_gmem(eight, refs.tails.at[unit.group, :, columns])
