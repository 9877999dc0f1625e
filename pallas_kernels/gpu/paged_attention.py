"""Ragged paged attention for Hopper GPUs (sm_90a): XLA writes the pages, two Mosaic GPU kernels read them.

    write_pages    a scatter into the donated pool, in place
    paged_decode   sequences with one query token each
    paged_prefill  tiles of query tokens

Both kernels always run: one that the batch holds no work for ends in microseconds, which costs less than the question
would, as XLA's conditional brings its answer to the host.
"""

from dataclasses import dataclass
from typing import cast

import jax
import jax.numpy as jnp
from jax import Array, lax

from pallas_kernels.gpu import decode_cut, paged_decode, paged_prefill, prefill_schedule
from pallas_kernels.gpu.paged_shape import PagedShape, pages_of
from pallas_kernels.quantization import PAGE_DTYPES, quantize
from pallas_kernels.ragged import AttentionOptions, Pool, PoolSpec, QuantizedPages, RaggedBatch


@dataclass(frozen=True)
class Blocks:
    """How both kernels are cut; None: as they derive it from the shapes."""

    decode: decode_cut.DecodeBlocks | None = None
    prefill: prefill_schedule.BlockSizes | None = None


def paged_attention(
    q: Array,  # [T, H, C]
    k: Array,  # [T, K, C]
    v: Array | None,  # [T, K, C]
    pool: Pool,  # [pages, L, page_size, 2K, C]; k of head i at 2i, v at 2i+1
    layer: Array | int,
    batch: RaggedBatch,
    options: AttentionOptions,
    sinks: Array | None = None,  # [H] extra logits that take weight and give no value
    window: Array | int | None = None,  # [] int32
    *,
    blocks: Blocks | None = None,
) -> tuple[Array, Pool]:
    """Writes k and v into the pool in place (when donated), then attends. Returns ([T, H, C], pool).

    Raises ValueError for what `refusal` names.
    """
    if v is None:
        raise ValueError(
            "the GPU kernels keep K and V in rows of their own: latent attention is for the reference body"
        )
    blocks = blocks or Blocks()
    num_tokens, num_rows = q.shape[0], min(q.shape[0], batch.page_table.shape[0])
    pool = write_pages(pool, k, v, layer, batch)
    decoded = paged_decode.decode(q[:num_rows], pool, layer, batch, options, sinks, window, blocks=blocks.decode)
    if num_tokens == 1:
        return decoded, pool  # a batch of one token is all decode
    prefilled = paged_prefill.prefill(q, pool, layer, batch, options, sinks, window, blocks=blocks.prefill)
    token = jnp.arange(num_tokens)[:, None, None]
    in_chunk = (token >= batch.num_decode) & (batch.sequence_ids < batch.num_seqs)[:, None, None]
    decoded = jnp.pad(decoded, ((0, num_tokens - num_rows), (0, 0), (0, 0)))
    return jnp.where(in_chunk, prefilled, decoded), pool


def pool_shape(spec: PoolSpec) -> Pool:
    """The contract's own layout, as jax.ShapeDtypeStruct."""
    shape = (spec.pages, spec.layers, spec.page_size, 2 * spec.kv_heads, spec.head_dim)
    values = jax.ShapeDtypeStruct(shape, jnp.dtype(spec.dtype))
    if values.dtype.name not in PAGE_DTYPES:
        return cast(Array, values)
    return QuantizedPages(cast(Array, values), cast(Array, jax.ShapeDtypeStruct(shape[:-1], jnp.float32)))


def refusal(options: AttentionOptions, heads: int, spec: PoolSpec) -> str | None:
    """Why this body cannot serve such a model, as a sentence; None where it can."""
    if spec.latent:
        return "the GPU kernels keep K and V in rows of their own: latent pages are for the reference body"
    shape = PagedShape(heads, spec.kv_heads, spec.head_dim, spec.page_size, jnp.dtype(spec.dtype))
    return paged_decode.refusal(options, shape) or paged_prefill.refusal(options, shape)


def write_pages(pool: Pool, k: Array, v: Array, layer: Array | int, batch: RaggedBatch) -> Pool:
    """Scatters each token's k and v to its page. Every slot is named once, so that no atomic operation is needed."""
    values = pages_of(pool)
    num_pages, num_layers, page_size, kv_rows, head_dim = values.shape
    num_seqs, table_width = batch.page_table.shape
    row = jnp.minimum(batch.sequence_ids, num_seqs - 1)
    column = jnp.minimum(batch.positions // page_size, table_width - 1)
    slot = (batch.page_table[row, column] * num_layers + layer) * page_size + batch.positions % page_size
    behind = num_pages * num_layers * page_size + jnp.arange(slot.shape[0], dtype=jnp.int32)
    slot = jnp.where(batch.sequence_ids < num_seqs, slot, behind)
    rows = jnp.stack([k, v], axis=2).reshape(k.shape[0], kv_rows, head_dim)
    if not isinstance(pool, QuantizedPages):
        return _scatter(pool, slot, rows.astype(pool.dtype))
    written, scales = quantize(rows, values.dtype)
    return QuantizedPages(_scatter(pool.values, slot, written), _scatter(pool.scales, slot, scales))


def _scatter(pages: Array, slot: Array, rows: Array) -> Array:
    """rows [T, ...] to the slots [T] of pages [pages, L, page_size, ...]; a slot behind the last one is dropped."""
    if pages.dtype == jnp.float8_e4m3fn:
        in_bytes = _scatter(_bytes(pages), slot, _bytes(rows))  # 8-bit floats would be computed with, bytes are moved
        return lax.bitcast_convert_type(in_bytes, pages.dtype)
    flat = pages.reshape(-1, *pages.shape[3:])
    if slot.shape[0] == 1:
        # XLA makes a one-row scatter a select over the whole pool; a second row, which is dropped, keeps it in place.
        slot = jnp.append(slot, flat.shape[0] + 1)
        rows = jnp.pad(rows, ((0, 1), *((0, 0),) * (rows.ndim - 1)))
    return flat.at[slot].set(rows, mode="drop", unique_indices=True).reshape(pages.shape)


def _bytes(floats: Array) -> Array:
    return lax.bitcast_convert_type(floats, jnp.uint8)
