"""Ragged paged attention on a TPU, in three kernels over one pool that they share in place.

    write_prefill   the chunks' keys and values into their pages           page_writes.py
    decode          one query token a sequence; writes its own row         decode.py
    prefill         tiles of query tokens                                  prefill.py

The pool's layout is the TPU's own (pool_layout.py). Kernels take all of it and a layer; nothing slices a layer out.
"""

from typing import Any

import jax.numpy as jnp
from jax import Array

from pallas_kernels.quantization import quantize
from pallas_kernels.ragged import AttentionOptions, Pool, PoolSpec, QuantizedPages, RaggedBatch
from pallas_kernels.tpu.blocks import Blocks, default_blocks, longest_page
from pallas_kernels.tpu.decode import DecodeTiles, decode
from pallas_kernels.tpu.page_ring import Pages
from pallas_kernels.tpu.page_writes import write_prefill
from pallas_kernels.tpu.pool_layout import LANES, RowLayout, pool_shape, round_up, rows_per_tile
from pallas_kernels.tpu.prefill import PrefillTiles, prefill
from pallas_kernels.tpu.softmax import Heads

__all__ = ["paged_attention", "pool_shape", "refusal"]

PAGE_TYPES = "float32", "bfloat16", "int8", "float8_e4m3fn"


def paged_attention(
    q: Array,  # [T, H, C]
    k: Array,  # [T, K, C]
    v: Array | None,  # [T, K, C]; None where options.value_dim is set
    pool: Pool,  # [pages, L, page_size, W], see pool_layout
    layer: Array | int,
    batch: RaggedBatch,
    options: AttentionOptions,
    sinks: Array | None = None,  # [H] extra logits that take weight and give no value
    window: Array | int | None = None,
    *,
    blocks: Blocks | None = None,
    interpret: Any = False,  # True, or pltpu.InterpretParams: run on a CPU
) -> tuple[Array, Pool]:
    """Writes k and v into the pool in place (when donated), then attends. Returns ([T, H, C or value_dim], pool).

    Raises ValueError for a pool whose shape is not this layout's.
    """
    num_tokens, num_heads, head_dim = q.shape
    kv_heads = k.shape[1]
    layout = RowLayout(kv_heads, head_dim, options.value_dim)
    _check_pool(pool, layout)
    values = pool.values if isinstance(pool, QuantizedPages) else pool
    num_seqs, table_width = batch.page_table.shape
    if blocks is None:
        sizes = values.shape[2], values.dtype.itemsize, table_width, num_tokens, num_seqs
        blocks = default_blocks(layout, num_heads, *sizes)
    heads = Heads(layout, options, has_window=window is not None)
    layer = jnp.asarray(layer, jnp.int32)
    window = None if window is None else jnp.asarray(window, jnp.int32)
    grouped = q.reshape(num_tokens, kv_heads, -1, head_dim)
    new, pages = _new_rows(k, v, layout, pool), _pages(pool)
    num_rows = min(num_seqs, num_tokens)

    pages = write_prefill(new, pages, layer, batch, blocks.write_buffers, blocks.vmem_limit, interpret)
    decoded, pages = decode(
        grouped[:num_rows],
        Pages(*(None if x is None else x[:num_rows] for x in new)),
        pages,
        layer,
        batch,
        heads,
        window,
        sinks,
        DecodeTiles(
            blocks.decode_sequences, blocks.decode_pages, blocks.decode_buffers, blocks.cores, blocks.vmem_limit
        ),
        interpret,
    )
    tiles = PrefillTiles(
        blocks.prefill_queries, blocks.prefill_pages, blocks.prefill_buffers, blocks.cores, blocks.vmem_limit
    )
    out = prefill(grouped, pages, layer, batch, heads, window, sinks, tiles, interpret)

    # Each kernel leaves the other's tokens and the padding undefined.
    decoded = jnp.pad(decoded, ((0, num_tokens - num_rows), *(((0, 0),) * 3)))
    out = jnp.where((jnp.arange(num_tokens) < batch.num_decode)[:, None, None, None], decoded, out)
    out = jnp.where((batch.sequence_ids < batch.num_seqs)[:, None, None, None], out, 0)
    out = out.reshape(num_tokens, num_heads, -1)
    return out, QuantizedPages(*pages) if isinstance(pool, QuantizedPages) else pages.values


def refusal(options: AttentionOptions, query_heads: int, pool: PoolSpec) -> str | None:
    """Why this body can't serve such a model on one device with such pages, or None where it can."""
    dtype = jnp.dtype(pool.dtype)
    if dtype.name not in PAGE_TYPES:
        return f"the TPU kernels keep pages in {', '.join(PAGE_TYPES)}, not in {dtype.name}"
    strip = rows_per_tile(dtype)
    if pool.page_size % strip:
        return f"a TPU copies {strip} rows of {dtype.name} at a time, and page_size {pool.page_size} is no multiple"
    if query_heads % pool.kv_heads:
        return f"{query_heads} query heads do not share {pool.kv_heads} KV heads evenly"
    if pool.latent != (options.value_dim is not None):
        return "latent pages and value_dim go together: one of the two is missing"
    if options.value_dim is not None and options.value_dim > pool.head_dim:
        return f"value_dim {options.value_dim} is more than the {pool.head_dim} numbers of a latent row"
    longest = longest_page(RowLayout(pool.kv_heads, pool.head_dim, options.value_dim).width, dtype.itemsize)
    if pool.page_size > longest:
        right = longest // strip * strip
        return (
            f"pages of {pool.page_size} positions of {pool.kv_heads} KV heads of {pool.head_dim} are too large to be "
            f"written in a TPU core's own memory: page_size must be at most {right}"
        )
    return None


def _check_pool(pool: Pool, layout: RowLayout) -> None:
    quantized = isinstance(pool, QuantizedPages)
    values = pool.values if quantized else pool
    if values.ndim != 4 or values.shape[3] != layout.width:
        raise ValueError(f"the TPU's pool is [pages, L, page_size, {layout.width}], not {list(values.shape)}")
    if values.shape[2] % rows_per_tile(values.dtype):
        raise ValueError(f"page_size {values.shape[2]} is not a multiple of {rows_per_tile(values.dtype)} rows")
    if quantized:
        scales = (*values.shape[:2], layout.rows_with_scales, round_up(values.shape[2], LANES))
        if pool.scales.shape != scales:
            raise ValueError(f"the TPU's scales are {list(scales)} (see pool_layout), not {list(pool.scales.shape)}")


def _pages(pool: Pool) -> Pages:
    return Pages(pool.values, pool.scales) if isinstance(pool, QuantizedPages) else Pages(pool)


def _new_rows(k: Array, v: Array | None, layout: RowLayout, pool: Pool) -> Pages:
    """This step's rows as the kernels take them: in float32, which alone can be read from any row on."""
    if not isinstance(pool, QuantizedPages):
        return Pages(layout.rows(k, v).astype(pool.dtype).astype(jnp.float32))
    k, key_scales = quantize(k, pool.values.dtype)
    if v is None:
        return Pages(layout.rows(k, None).astype(jnp.float32), key_scales)
    v, value_scales = quantize(v, pool.values.dtype)
    scales = jnp.stack([key_scales, value_scales], axis=2).reshape(k.shape[0], -1)
    return Pages(layout.rows(k, v).astype(jnp.float32), scales)
