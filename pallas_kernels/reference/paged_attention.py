"""Ragged paged attention in plain jnp: the truth for the other bodies, and the body that a CPU runs.

Work is bounded by the longest live context, not by the longest possible one: both halves walk over blocks of pages in
loops whose trip counts are read from the batch. Decoding sequences go through together, one query row each; prefill
chunks go through in tiles of QUERY_TILE tokens of one sequence, so that a tile gathers its keys and values once.
The softmax is the usual online one (Milakov and Gimelshein, arXiv 1805.02867), accumulated in float32.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax import Array, lax

from pallas_kernels.ragged import AttentionOptions, Pool, PoolSpec, QuantizedPages, RaggedBatch

QUERY_TILE = 64
DECODE_BLOCK = 64  # keys per step of the decode loop
PREFILL_BLOCK = 256  # keys per step of a prefill tile's loop
NEGATIVE = -1e30  # finite: a row with nothing to see stays free of NaN

Carry = tuple[Array, Array, Array]  # running maximum, running sum, running output


def pool_shape(spec: PoolSpec) -> Pool:
    """The pool of the contract itself, as jax.ShapeDtypeStruct."""
    rows = 1 if spec.latent else 2 * spec.kv_heads
    return jax.eval_shape(lambda: jnp.zeros((spec.pages, spec.layers, spec.page_size, rows, spec.head_dim), spec.dtype))


def refusal(options: AttentionOptions, heads: int, spec: PoolSpec) -> str | None:
    """Why this body cannot serve such a model: a sentence, or None if it can."""
    if heads % spec.kv_heads:
        return f"{heads} query heads do not share {spec.kv_heads} KV heads evenly"
    if options.chunked:
        return "the reference body has no chunked window"
    if options.value_dim is not None or spec.latent:
        return "the reference body has no latent pages"
    if jnp.dtype(spec.dtype).itemsize == 1:
        return "the reference body has no pages in 8 bits"
    return None


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
) -> tuple[Array, Pool]:
    """Writes k and v into the pool in place (when donated), then attends. Returns ([T, H, C], pool).

    Raises ValueError for what `refusal` names.
    """
    if options.chunked or v is None or isinstance(pool, QuantizedPages):
        raise ValueError("the reference body has no chunked window, no latent pages and no pages in 8 bits")
    # The loops read whole blocks of pages: a table that ended inside one would make that slice start too early.
    longest = max(_pages_per_block(DECODE_BLOCK, pool), _pages_per_block(PREFILL_BLOCK, pool))
    batch = dataclasses.replace(batch, page_table=jnp.pad(batch.page_table, ((0, 0), (0, longest))))
    pool = write_pages(pool, k, v, layer, batch)
    decoded, pool = _decode(q, pool, layer, batch, options, sinks, window)
    return _prefill(q, decoded, pool, layer, batch, options, sinks, window)


def write_pages(pool: Array, k: Array, v: Array, layer: Array | int, batch: RaggedBatch) -> Array:
    """Scatters each token's k and v to its page; padding tokens are dropped."""
    num_pages, num_layers, page_size, _, _ = pool.shape
    num_seqs, table_width = batch.page_table.shape
    row = jnp.minimum(batch.sequence_ids, num_seqs - 1)
    column = jnp.minimum(batch.positions // page_size, table_width - 1)
    slot = (batch.page_table[row, column] * num_layers + layer) * page_size + batch.positions % page_size
    slot = jnp.where(batch.sequence_ids < num_seqs, slot, num_pages * num_layers * page_size)
    rows = jnp.stack([k, v], axis=2).reshape(k.shape[0], -1, k.shape[2]).astype(pool.dtype)
    if slot.shape[0] == 1:
        # XLA turns a one-row scatter into a select over the whole pool; a second, dropped row keeps it in place.
        slot = jnp.append(slot, num_pages * num_layers * page_size)
        rows = jnp.pad(rows, ((0, 1), (0, 0), (0, 0)))
    flat = pool.reshape(-1, *pool.shape[3:])
    return flat.at[slot].set(rows, mode="drop").reshape(pool.shape)


def _decode(
    q: Array,
    pool: Array,
    layer: Array | int,
    batch: RaggedBatch,
    options: AttentionOptions,
    sinks: Array | None,
    window: Array | int | None,
) -> tuple[Array, Array]:
    """Attention of the first num_decode tokens, one per sequence. Returns [T, H, C], zero elsewhere."""
    num_tokens, num_heads, head_dim = q.shape
    num_rows = min(batch.page_table.shape[0], num_tokens)
    num_kv_heads = pool.shape[3] // 2
    lens = jnp.where(jnp.arange(num_rows) < batch.num_decode, batch.kv_lens[:num_rows], 0)
    rows = q[:num_rows].reshape(num_rows, num_kv_heads, -1, head_dim)
    carry = _begin(rows, sinks)
    pages = _pages_per_block(DECODE_BLOCK, pool)
    size = pages * pool.shape[2]
    position = (lens - 1)[:, None]  # the same for every query row of a sequence

    def step(i: Array, state: tuple[Carry, Array]) -> tuple[Carry, Array]:
        carry, pool = state
        table = lax.dynamic_slice_in_dim(batch.page_table[:num_rows], i * pages, pages, axis=1)
        return _attend_block(rows, pool, layer, table, i * size, position, carry, options, window), pool

    begin = 0 if window is None else _first_block(lens, window, size)
    carry, pool = lax.fori_loop(begin, _cdiv(jnp.max(lens), size), step, (carry, pool))
    out = _finish(carry).reshape(num_rows, num_heads, head_dim).astype(q.dtype)
    out = jnp.where((jnp.arange(num_rows) < batch.num_decode)[:, None, None], out, 0)
    return jnp.pad(out, ((0, num_tokens - num_rows), (0, 0), (0, 0))), pool


def _first_block(lens: Array, window: Array | int, size: int) -> Array:
    """The first block that any live row can see through the window."""
    first = jnp.where(lens > 0, jnp.maximum(lens - window, 0), jnp.iinfo(jnp.int32).max)
    return jnp.where(jnp.max(lens) > 0, jnp.min(first) // size, 0)


def _prefill(
    q: Array,
    out: Array,  # [T, H, C] to write into
    pool: Array,
    layer: Array | int,
    batch: RaggedBatch,
    options: AttentionOptions,
    sinks: Array | None,
    window: Array | int | None,
) -> tuple[Array, Array]:
    """Attention of the sequences after num_decode, a tile of query tokens at a time."""
    num_tokens, num_heads, head_dim = q.shape
    num_seqs = batch.page_table.shape[0]
    num_kv_heads = pool.shape[3] // 2
    pages = _pages_per_block(PREFILL_BLOCK, pool)
    size = pages * pool.shape[2]
    tile = min(QUERY_TILE, num_tokens)
    if num_tokens == 1:
        return out, pool  # a batch of one token is all decode
    live = (jnp.arange(num_seqs) >= batch.num_decode) & (jnp.arange(num_seqs) < batch.num_seqs)
    lengths = jnp.where(live, batch.cu_q_lens[1:] - batch.cu_q_lens[:-1], 0)
    tiles_before = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(_cdiv(lengths, tile))])
    padded = jnp.pad(q, ((0, tile), (0, 0), (0, 0)))
    out = jnp.pad(out, ((0, tile), (0, 0), (0, 0)))

    def one_tile(t: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        out, pool = state
        seq = jnp.searchsorted(tiles_before, t, side="right") - 1
        offset = (t - tiles_before[seq]) * tile
        start = batch.cu_q_lens[seq] + offset
        count = jnp.minimum(lengths[seq] - offset, tile)
        first = batch.kv_lens[seq] - lengths[seq] + offset  # position of the tile's first token
        rows = lax.dynamic_slice_in_dim(padded, start, tile).reshape(tile, num_kv_heads, -1, head_dim)
        group = rows.shape[2]
        rows = rows.transpose(1, 0, 2, 3).reshape(1, num_kv_heads, tile * group, head_dim)
        # The tile's spare rows stand at its last token: further on, nothing of this sequence is written yet.
        position = jnp.repeat(first + jnp.minimum(jnp.arange(tile), count - 1), group)[None]

        def step(i: Array, state: tuple[Carry, Array]) -> tuple[Carry, Array]:
            carry, pool = state
            table = lax.dynamic_slice(batch.page_table, (seq, i * pages), (1, pages))
            return _attend_block(rows, pool, layer, table, i * size, position, carry, options, window), pool

        begin = 0 if window is None else jnp.maximum(first - window + 1, 0) // size
        end = _cdiv(first + count, size)
        carry, pool = lax.fori_loop(begin, end, step, (_begin(rows, sinks, tile), pool))
        done = _finish(carry).reshape(num_kv_heads, tile, group, head_dim).transpose(1, 0, 2, 3)
        done = done.reshape(tile, num_heads, head_dim).astype(q.dtype)
        kept = lax.dynamic_slice_in_dim(out, start, tile)
        done = jnp.where((jnp.arange(tile) < count)[:, None, None], done, kept)
        return lax.dynamic_update_slice_in_dim(out, done, start, 0), pool

    out, pool = lax.fori_loop(0, tiles_before[-1], one_tile, (out, pool))
    return out[:num_tokens], pool


def _begin(rows: Array, sinks: Array | None, repeat: int = 1) -> Carry:
    """The online softmax before any key: rows is [B, K, N, C]. A sink is a key that was seen and has no value."""
    batch, num_kv_heads, num_rows, head_dim = rows.shape
    output = jnp.zeros((batch, num_kv_heads, num_rows, head_dim), jnp.float32)
    if sinks is None:
        shape = (batch, num_kv_heads, num_rows)
        return jnp.full(shape, NEGATIVE, jnp.float32), jnp.zeros(shape, jnp.float32), output
    sink = jnp.tile(sinks.astype(jnp.float32).reshape(num_kv_heads, -1), (1, repeat))
    maximum = jnp.broadcast_to(sink[None], (batch, num_kv_heads, num_rows))
    return maximum, jnp.ones_like(maximum), output


def _attend_block(
    rows: Array,  # [B, K, N, C] queries
    pool: Array,
    layer: Array | int,
    table: Array,  # [B, n] the n pages of each sequence that hold this block's keys
    begin: Array,  # [] position of the block's first key
    position: Array,  # [B, N] of each query row, or [B, 1] where all have one
    carry: Carry,
    options: AttentionOptions,
    window: Array | int | None,
) -> Carry:
    """One step of the online softmax: n * page_size more keys of each of the B sequences."""
    maximum, total, output = carry
    size = table.shape[1] * pool.shape[2]
    keys_values = _pages_of(pool, table, layer).reshape(table.shape[0], size, rows.shape[1], 2, rows.shape[3])
    keys, values = keys_values[..., 0, :].astype(rows.dtype), keys_values[..., 1, :].astype(rows.dtype)
    scores = jnp.einsum("bknc,bskc->bkns", rows, keys, preferred_element_type=jnp.float32) * options.scale
    if options.soft_cap is not None:
        scores = options.soft_cap * jnp.tanh(scores / options.soft_cap)
    key_position = begin + jnp.arange(size)
    visible = key_position <= position[..., None]  # [B, N or 1, size]
    if window is not None:
        visible &= key_position > position[..., None] - window
    scores = jnp.where(visible[:, None], scores, NEGATIVE)
    # A page may hold an earlier owner's numbers, and 0 * NaN is NaN: nothing of theirs may reach this sequence.
    written = key_position <= position.max(axis=-1, keepdims=True)  # [B, size]
    values = jnp.where(written[..., None, None], values, 0)
    new_maximum = jnp.maximum(maximum, scores.max(axis=-1))
    weights = jnp.where(visible[:, None], jnp.exp(scores - new_maximum[..., None]), 0.0)
    shrink = jnp.exp(maximum - new_maximum)
    added = jnp.einsum("bkns,bskc->bknc", weights.astype(values.dtype), values, preferred_element_type=jnp.float32)
    return new_maximum, total * shrink + weights.sum(axis=-1), output * shrink[..., None] + added


def _pages_of(pool: Array, table: Array, layer: Array | int) -> Array:
    """[B, n, page_size * 2K * C]: pages copied out whole.

    One page is one row of a flat view, and the barrier keeps XLA from folding the copy into the transposes that follow:
    on a CPU the two together take 0.6 of the time of `pool[table, layer]`.
    """
    flat = pool.reshape(pool.shape[0] * pool.shape[1], -1)
    return lax.optimization_barrier(flat.at[table * pool.shape[1] + layer].get(mode="promise_in_bounds"))


def _finish(carry: Carry) -> Array:
    """[B, K, N, C]; a row that saw no key is zero."""
    _, total, output = carry
    return output / jnp.maximum(total, 1e-30)[..., None]


def _pages_per_block(keys: int, pool: Array) -> int:
    """Whole pages that make a block of about `keys` keys."""
    return max(1, keys // pool.shape[2])


def _cdiv(a: Array, b: int) -> Array:
    return (a + b - 1) // b
