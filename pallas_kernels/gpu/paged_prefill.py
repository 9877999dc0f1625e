"""Prefill chunks over paged keys and values, for Hopper (sm_90a), in Mosaic GPU.

One program per SM walks over a list of work items; an item is ROWS query rows of one sequence for one KV head. Three
warpgroups share a program: two attend (prefill_attend), 64 rows each, and one fetches (prefill_fetch).

    pages in GMEM --TMA, page by page--> ring of K and V units in SMEM --wgmma--> scores, output in registers
    q in GMEM ------TMA, once an item--> q in SMEM -----------------------^

The ring holds K and V of successive key blocks in turn: unit 2i is K of block i, unit 2i+1 its V. Pages in 8 bits land
in a ring of their own; the fetching warpgroup scales them to bfloat16 on the way into the ring, so that the attending
ones see no difference.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import Array, lax

from pallas_kernels.gpu.hopper import Ref
from pallas_kernels.gpu.paged_shape import PagedShape, pages_of
from pallas_kernels.gpu.prefill_attend import AttendingWarpgroup
from pallas_kernels.gpu.prefill_cut import PrefillCut, PrefillRefs
from pallas_kernels.gpu.prefill_fetch import FetchingWarpgroup
from pallas_kernels.gpu.prefill_schedule import ATTENDING, BlockSizes, folded, sinks_by_phase, unfolded, work_list
from pallas_kernels.ragged import AttentionOptions, Pool, QuantizedPages, RaggedBatch

PAGE_DTYPES = (jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.int8), jnp.dtype(jnp.float8_e4m3fn))


def refusal(options: AttentionOptions, shape: PagedShape) -> str | None:
    """Why this kernel cannot serve attention of that shape, as a sentence; None where it can."""
    if options.chunked:
        return "the GPU prefill kernel has no chunked window: it is for the reference body"
    if options.scale <= 0:
        return f"the GPU prefill kernel takes a scale above 0, not {options.scale}: it finds maxima before it scales"
    return shape.refusal("prefill", options, PAGE_DTYPES)


def prefill(
    q: Array,  # [T, H, C] bfloat16
    pool: Pool,  # [pages, L, page_size, 2K, C]; holds the new K and V already
    layer: Array | int,
    batch: RaggedBatch,
    options: AttentionOptions,
    sinks: Array | None = None,  # [H]
    window: Array | int | None = None,  # []
    *,
    blocks: BlockSizes | None = None,
) -> Array:  # [T, H, C]; rows of tokens that are in no prefill chunk hold anything
    """Attention of the sequences after num_decode. Raises ValueError for what `refusal` names."""
    shape = PagedShape.of(q.shape, pool)
    reason = refusal(options, shape)
    if q.dtype != jnp.bfloat16:
        reason = f"the GPU prefill kernel takes queries in bfloat16, not {q.dtype}"
    if reason is not None:
        raise ValueError(reason)
    blocks = blocks or BlockSizes.derived(q.shape, pool, batch.kv_lens.shape[0])
    cut = PrefillCut(blocks, options, shape, sunk=sinks is not None, windowed=window is not None)
    items, count = work_list(batch, q.shape[0], blocks, window)
    operands = {
        "items": items,
        "count": count,
        "table": batch.page_table,
        "layer": jnp.asarray(layer, jnp.int32).reshape(1),
        "values": pages_of(pool),
    }
    if isinstance(pool, QuantizedPages):
        operands["scales"] = pool.scales
    if window is not None:
        operands["window"] = jnp.asarray(window, jnp.int32).reshape(1)
    if sinks is not None:
        operands["sinks"] = sinks_by_phase(sinks, blocks.heads)
    return unfolded(_launch(cut, folded(q, blocks.heads), operands), q.shape, blocks.heads)


def _launch(cut: PrefillCut, q: Array, operands: dict[str, Array]) -> Array:
    """The kernel over folded q; the output has its shape."""
    names = list(operands)

    def prefill_chunks(q_ref: Ref, *refs: Ref, **scratch: Ref) -> None:
        ins = dict(zip(names, refs[:-1], strict=True))
        _run(cut, PrefillRefs(q=q_ref, out=refs[-1], ins=ins, **scratch))

    kernel = plgpu.kernel(
        prefill_chunks,
        out_type=jax.ShapeDtypeStruct(q.shape, q.dtype),
        scratch_types=cut.scratch(),
        grid=(cut.blocks.programs,),
        grid_names=("program",),
        num_threads=ATTENDING + 1,
        thread_name="warpgroup",
        # By name, as the default of jax 0.11 infers layouts, which this kernel states.
        compiler_params=plgpu.CompilerParams(approx_math=True, lowering_semantics=plgpu.LoweringSemantics.Lane),
    )
    return kernel(q, *operands.values())


def _run(cut: PrefillCut, refs: PrefillRefs) -> None:
    warpgroup = lax.axis_index("warpgroup")

    @pl.when(warpgroup < ATTENDING)
    def _() -> None:
        plgpu.set_max_registers(cut.blocks.attending_registers, action="increase")
        _for_each_item(cut, refs, AttendingWarpgroup(cut, refs, warpgroup).attend)

    @pl.when(warpgroup == ATTENDING)
    def _() -> None:
        plgpu.set_max_registers(cut.blocks.fetching_registers, action="decrease")
        fetching = FetchingWarpgroup(cut, refs)
        fetching.wait_until_read(_for_each_item(cut, refs, fetching.fetch))


def _for_each_item(cut: PrefillCut, refs: PrefillRefs, work: Callable[[Array, Array], None]) -> Array:
    """Runs `work` with the index of each item of this program and the units before it. Returns the units of all.

    The rounds go to and fro over the programs: who had the longest item of one round has the shortest of the next.
    """
    programs, program = cut.blocks.programs, lax.axis_index("program")
    total = refs.ins["count"][0] * cut.tile_heads
    rounds, rest = lax.div(total, programs), lax.rem(total, programs)

    def place(turn: Array) -> Array:
        return jnp.where(lax.rem(turn, 2) == 0, program, programs - 1 - program)

    def one(turn: Array, unit: Array) -> Array:
        index = turn * programs + place(turn)
        work(index, unit)
        item = cut.item(refs, index)
        return unit + 2 * (item.end - item.begin)

    mine = rounds + jnp.where(place(rounds) < rest, 1, 0)
    return lax.fori_loop(0, mine, one, jnp.int32(0))
