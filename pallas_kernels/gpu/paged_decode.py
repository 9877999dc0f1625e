"""Attention of the sequences that decode (one token each), over pages, for sm_90a.

The products are taken with swapped operands, so that the few query rows that share a KV head are the N of the wgmma
(a multiple of 8) and the keys its M: S^T[keys, rows] = K Q^T, and O^T[values, rows] = V^T P^T. Two warpgroups share a
CTA: one fetches (decode_fetch), one attends (decode_attend). Which CTA takes what is decode_schedule's; a second kernel
joins what several took of one unit (decode_merge).
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.gpu.decode_attend import attend
from pallas_kernels.gpu.decode_cut import DecodeBlocks, DecodeCut
from pallas_kernels.gpu.decode_fetch import fetch
from pallas_kernels.gpu.decode_merge import merge
from pallas_kernels.gpu.decode_pieces import Global, Shared
from pallas_kernels.gpu.decode_schedule import Schedule, schedule
from pallas_kernels.gpu.hopper import Ref
from pallas_kernels.gpu.paged_shape import PagedShape, pages_of
from pallas_kernels.gpu.softmax import LOG2_E
from pallas_kernels.ragged import AttentionOptions, Pool, QuantizedPages, RaggedBatch

PAGE_DTYPES = tuple(jnp.dtype(name) for name in ("bfloat16", "float16", "int8", "float8_e4m3fn"))


def refusal(options: AttentionOptions, shape: PagedShape) -> str | None:
    """Why this kernel can't serve attention of that shape, as a sentence; None where it can."""
    reason = shape.refusal("decode", options, PAGE_DTYPES)
    if reason is None and shape.quantized and shape.head_dim % 32:
        return f"the GPU decode kernel takes 8-bit pages of head sizes that are multiples of 32, not {shape.head_dim}"
    return reason


def decode(
    q: Array,  # [S', H, C]: one token of each of the first S' sequences
    pool: Pool,
    layer: Array | int,
    batch: RaggedBatch,
    options: AttentionOptions,
    sinks: Array | None,  # [H]
    window: Array | int | None,
    *,
    blocks: DecodeBlocks | None = None,
) -> Array:  # [S', H, C]
    """Attention of the first num_decode sequences, whose new k and v are in the pool already; the other rows are zero.

    Raises ValueError for what `refusal` names.
    """
    cut = _cut(q, pool, options, blocks)
    work = schedule(
        batch.kv_lens[: q.shape[0]],
        batch.num_decode,
        window,
        chunked=options.chunked,
        units=cut.units,
        keys=cut.blocks.keys,
        ctas=cut.blocks.ctas,
    )
    outputs, log_sums = _attend_pieces(cut, cut.rows_of(q), pool, layer, batch.page_table, work)
    spread_sinks = None
    if sinks is not None:
        spread_sinks = cut.rows_of(sinks.astype(jnp.float32)[None, :, None] * LOG2_E)[0, ..., 0]
    return cut.heads_of(merge(outputs, log_sums, work, spread_sinks, units=cut.units, dtype=q.dtype))


def derived_blocks(q: Array, pool: Pool, options: AttentionOptions) -> DecodeBlocks:
    """How `decode` cuts its work when it is not told; shapes are enough."""
    return _cut(q, pool, options, None).blocks


def _cut(q: Array, pool: Pool, options: AttentionOptions, blocks: DecodeBlocks | None) -> DecodeCut:
    shape = PagedShape.of(q.shape, pool)
    reason = refusal(options, shape)
    if q.dtype not in (jnp.bfloat16, jnp.float16):
        reason = f"the GPU decode kernel takes queries in bfloat16 or float16, not {q.dtype}"
    elif not shape.quantized and shape.page_dtype != q.dtype:
        reason = (
            f"the GPU decode kernel takes 16-bit pages of the type of the queries, {q.dtype}, not {shape.page_dtype}"
        )
    if reason is not None:
        raise ValueError(reason)
    return DecodeCut.of(q.shape, q.dtype, pool, options, blocks)


def _attend_pieces(
    cut: DecodeCut, queries: Array, pool: Pool, layer: Array | int, table: Array, work: Schedule
) -> tuple[Array, Array]:
    """The output and the logarithm of the sum of each piece: [pieces, V, N], [pieces, N]."""
    pieces = queries.shape[0] * cut.units + cut.blocks.ctas
    layers = jnp.asarray(layer, jnp.int32).reshape(1)
    operands = [pages_of(pool), queries, table, layers, *dataclasses.astuple(work)]
    if isinstance(pool, QuantizedPages):
        pages, num_layers, _, kv_rows = pool.scales.shape
        operands.insert(1, pool.scales.reshape(pages, num_layers, -1, cut.blocks.keys, kv_rows))

    def decode_pieces(*references: Ref, **scratch: Ref) -> None:
        _run(cut, references, Shared(**scratch))

    kernel = plgpu.kernel(
        decode_pieces,
        out_type=[
            jax.ShapeDtypeStruct((pieces, cut.values, cut.rows), jnp.float32),
            jax.ShapeDtypeStruct((pieces, cut.rows), jnp.float32),
        ],
        grid=(cut.blocks.ctas,),
        grid_names=("cta",),
        num_threads=2,
        thread_name="warpgroup",
        scratch_types=cut.scratch(),
        compiler_params=plgpu.CompilerParams(approx_math=True, reduction_scratch_bytes=cut.reduction_scratch),
    )
    outputs, log_sums = kernel(*operands)
    return outputs, log_sums


def _run(cut: DecodeCut, references: Sequence[Ref], shared: Shared) -> None:
    pages, *rest = references
    scales = rest.pop(0) if cut.shape.quantized else None
    queries, table, layer, *work, outputs, log_sums = rest
    device = Global(queries, pages, scales, table, layer, Schedule(*work), outputs, log_sums)
    warpgroup = lax.axis_index("warpgroup")
    pl.when(warpgroup == 0)(lambda: attend(cut, device, shared))
    pl.when(warpgroup == 1)(lambda: fetch(cut, device, shared))
