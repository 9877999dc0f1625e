"""The pool as the reference body keeps it: the contract's own layout. Writing rows to pages, and copying pages out."""

import jax
import jax.numpy as jnp
from jax import Array, lax

from pallas_kernels.quantization import PAGE_DTYPES, dequantize, quantize
from pallas_kernels.ragged import Pool, PoolSpec, QuantizedPages, RaggedBatch


def pool_shape(spec: PoolSpec) -> Pool:
    """The pool of the contract itself, as jax.ShapeDtypeStruct."""
    return jax.eval_shape(lambda: _zeros(spec))


def _zeros(spec: PoolSpec) -> Pool:
    rows = 1 if spec.latent else 2 * spec.kv_heads
    shape = (spec.pages, spec.layers, spec.page_size, rows, spec.head_dim)
    values = jnp.zeros(shape, spec.dtype)
    return QuantizedPages(values, jnp.ones(shape[:-1], jnp.float32)) if values.dtype.name in PAGE_DTYPES else values


def values_of(pool: Pool) -> Array:
    """[pages, L, page_size, rows, C], as they are kept."""
    return pool.values if isinstance(pool, QuantizedPages) else pool


def write_pages(pool: Pool, k: Array, v: Array | None, layer: Array | int, batch: RaggedBatch) -> Pool:
    """Scatters each token's k and v to its page; padding tokens are dropped."""
    num_pages, num_layers, page_size, num_rows, head_dim = values_of(pool).shape
    num_seqs, table_width = batch.page_table.shape
    row = jnp.minimum(batch.sequence_ids, num_seqs - 1)
    column = jnp.minimum(batch.positions // page_size, table_width - 1)
    slot = (batch.page_table[row, column] * num_layers + layer) * page_size + batch.positions % page_size
    slot = jnp.where(batch.sequence_ids < num_seqs, slot, num_pages * num_layers * page_size)
    rows = (k if v is None else jnp.stack([k, v], axis=2)).reshape(k.shape[0], num_rows, head_dim)
    if not isinstance(pool, QuantizedPages):
        return _scatter(pool, slot, rows.astype(pool.dtype))
    values, scales = quantize(rows, pool.values.dtype)
    return QuantizedPages(_scatter(pool.values, slot, values), _scatter(pool.scales, slot, scales))


def _scatter(pool: Array, slot: Array, rows: Array) -> Array:
    """rows [T, ...] to the slots [T] of pool [pages, L, page_size, ...]; a slot behind the last one is dropped."""
    if pool.dtype == jnp.float8_e4m3fn:
        # XLA's CPU scatter takes floats of 8 bits through float32, all of the pool; bytes it only copies.
        written = _scatter(_bytes(pool), slot, _bytes(rows))
        return lax.bitcast_convert_type(written, pool.dtype)
    flat = pool.reshape(-1, *pool.shape[3:])
    if slot.shape[0] == 1:
        # XLA turns a one-row scatter into a select over the whole pool; a second, dropped row keeps it in place.
        slot = jnp.append(slot, flat.shape[0])
        rows = jnp.pad(rows, ((0, 1), *((0, 0),) * (rows.ndim - 1)))
    return flat.at[slot].set(rows, mode="drop").reshape(pool.shape)


def _bytes(floats: Array) -> Array:
    return lax.bitcast_convert_type(floats, jnp.uint8)


def read_pages(pool: Pool, table: Array, layer: Array | int) -> Array:
    """table [B, n] -> [B, n * page_size, rows, C]: those pages of a layer, in float32 where they are quantized."""
    _, _, page_size, num_rows, head_dim = values_of(pool).shape
    batch, count = table.shape
    shape = (batch, count * page_size, num_rows, head_dim)
    if not isinstance(pool, QuantizedPages):
        return _gather(pool, table, layer).reshape(shape)
    values = _gather(pool.values, table, layer).reshape(shape)
    return dequantize(values, _gather(pool.scales, table, layer).reshape(shape[:-1]))


def _gather(pool: Array, table: Array, layer: Array | int) -> Array:
    """[B, n, numbers of a page]: pages copied out whole.

    One page is one row of a flat view, and the barrier keeps XLA from folding the copy into the transposes that follow:
    on a CPU the two together take 0.6 of the time of `pool[table, layer]`.
    """
    flat = pool.reshape(pool.shape[0] * pool.shape[1], -1)
    return lax.optimization_barrier(flat.at[table * pool.shape[1] + layer].get(mode="promise_in_bounds"))
