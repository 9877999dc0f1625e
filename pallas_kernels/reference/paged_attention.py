"""Ragged paged attention in plain jnp: the truth for the other bodies, and most of what a CPU runs.

Work is bounded by the longest live context, not by the longest possible one: both halves walk over blocks of pages in
loops whose trip counts are read from the batch. Decoding sequences go through together, one query row each: first over
the pages that all of them share, which are read once for all, then over those of their own. Prefill chunks go through
in tiles of QUERY_TILE tokens of one sequence, so that a tile gathers its keys and values once.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax import Array, lax

from pallas_kernels.quantization import PAGE_DTYPES
from pallas_kernels.ragged import AttentionOptions, Pool, PoolSpec, RaggedBatch
from pallas_kernels.reference.online_softmax import Carry, add_block, begin, finish, first_visible
from pallas_kernels.reference.pages import pool_shape, read_pages, values_of, write_pages

__all__ = ["paged_attention", "pool_shape", "refusal"]

QUERY_TILE = 32  # a short message after a long prefix fills it; 64 would take 3% less for long prompts
DECODE_BLOCK = 64  # keys per step of the decode loop
SHARED_BLOCK = 64  # keys per step of the loop over what decoding sequences share
PREFILL_BLOCK = 128  # keys per step of a prefill tile's loop


def refusal(options: AttentionOptions, heads: int, spec: PoolSpec) -> str | None:
    """Why this body cannot serve such a model: a sentence, or None if it can."""
    dtype = jnp.dtype(spec.dtype)
    if heads % spec.kv_heads:
        return f"{heads} query heads do not share {spec.kv_heads} KV heads evenly"
    if spec.latent != (options.value_dim is not None):
        return "latent pages go with a value_dim and other pages without one"
    if spec.latent and spec.kv_heads != 1:
        return f"latent pages have one KV head, not {spec.kv_heads}"
    if not jnp.issubdtype(dtype, jnp.floating) and dtype.name not in PAGE_DTYPES:
        return f"pages hold floats, or {' or '.join(PAGE_DTYPES)} with scales, not {dtype.name}"
    return None


def paged_attention(
    q: Array,  # [T, H, C]
    k: Array,  # [T, K, C]
    v: Array | None,  # [T, K, C]; None where latent
    pool: Pool,  # [pages, L, page_size, 2K, C]; k of head i at 2i, v at 2i+1
    layer: Array | int,
    batch: RaggedBatch,
    options: AttentionOptions,
    sinks: Array | None = None,  # [H] extra logits that take weight and give no value
    window: Array | int | None = None,  # [] int32
) -> tuple[Array, Pool]:
    """Writes k and v into the pool in place (when donated), then attends. Returns ([T, H, C or value_dim], pool)."""
    return Attention(layer, batch, options, sinks, window).step(q, k, v, pool)


@dataclasses.dataclass(frozen=True)
class Attention:
    """One layer's attention over one batch; the pool goes in and out, so that XLA keeps it in place."""

    layer: Array | int
    batch: RaggedBatch
    options: AttentionOptions
    sinks: Array | None
    window: Array | int | None

    def step(self, q: Array, k: Array, v: Array | None, pool: Pool) -> tuple[Array, Pool]:
        """`paged_attention` itself."""
        # The loops read whole blocks of pages: a table that ended inside one would make that slice start too early.
        longest = max(_pages_per_block(keys, pool) for keys in (DECODE_BLOCK, SHARED_BLOCK, PREFILL_BLOCK))
        table = jnp.pad(self.batch.page_table, ((0, 0), (0, longest)))
        padded = dataclasses.replace(self, batch=dataclasses.replace(self.batch, page_table=table))
        pool = write_pages(pool, k, v, self.layer, self.batch)
        decoded, pool = padded.decode(q, pool)
        return padded.prefill(q, decoded, pool)

    def decode(self, q: Array, pool: Pool) -> tuple[Array, Pool]:
        """The first num_decode tokens, one per sequence. Returns [T, H, V], zero elsewhere."""
        batch = self.batch
        num_tokens, num_heads, head_dim = q.shape
        num_rows = min(batch.page_table.shape[0], num_tokens)
        live = jnp.arange(num_rows) < batch.num_decode
        lens = jnp.where(live, batch.kv_lens[:num_rows], 0)
        rows = q[:num_rows].reshape(num_rows, _kv_heads(pool), -1, head_dim)
        first = jnp.where(live, self._first_visible(lens - 1), jnp.iinfo(jnp.int32).max)
        carry = begin(rows, self._value_dim(q), self.sinks)
        shared = jnp.int32(0)
        if num_rows > 1:
            carry, pool, shared = self._shared(carry, rows, pool, lens, live, jnp.min(first))
        carry, pool = self.own_pages(carry, rows, pool, lens, first, shared)
        out = finish(carry).reshape(num_rows, num_heads, -1).astype(q.dtype)
        out = jnp.where(live[:, None, None], out, 0)
        return jnp.pad(out, ((0, num_tokens - num_rows), (0, 0), (0, 0))), pool

    def own_pages(
        self, carry: Carry, rows: Array, pool: Pool, lens: Array, first: Array, shared: Array
    ) -> tuple[Carry, Pool]:
        """Decoding sequences of rows [S, K, G, C] over their pages from the `shared`-th on, up to positions lens [S].

        `first` [S] is the first position that a sequence sees.
        """
        pages = _pages_per_block(DECODE_BLOCK, pool)
        size = pages * _page_size(pool)
        every_table = self.batch.page_table[: rows.shape[0]]
        position = (lens - 1)[:, None]  # the same for every query row of a sequence

        def step(i: Array, state: tuple[Carry, Pool]) -> tuple[Carry, Pool]:
            carry, pool = state
            begin_page = shared + i * pages
            table = lax.dynamic_slice_in_dim(every_table, begin_page, pages, axis=1)
            return self._add_pages(carry, rows, pool, table, begin_page * _page_size(pool), position), pool

        own = shared * _page_size(pool)  # where the sequences' own pages begin
        last = _cdiv(jnp.maximum(jnp.max(lens) - own, 0), size)
        return lax.fori_loop(jnp.clip((jnp.min(first) - own) // size, 0, last), last, step, (carry, pool))

    def _shared(
        self, carry: Carry, rows: Array, pool: Pool, lens: Array, live: Array, first: Array
    ) -> tuple[Carry, Pool, Array]:
        """The blocks of keys that the live sequences of rows [S, K, G, C] have in common, as one product for all.

        `first` is the first position that any of them sees. The last number returned is how many pages are done.
        """
        pages = _pages_per_block(SHARED_BLOCK, pool)
        size = pages * _page_size(pool)
        group = rows.shape[2]
        together = _together(rows)
        position = jnp.repeat((lens - 1)[None], group, 1)
        table = self.batch.page_table[: rows.shape[0]]
        blocks = shared_pages(table, live, lens, _page_size(pool)) // pages

        def step(i: Array, state: tuple[Carry, Pool]) -> tuple[Carry, Pool]:
            carry, pool = state
            common = lax.dynamic_slice(table, (0, i * pages), (1, pages))
            return self._add_pages(carry, together, pool, common, i * size, position), pool

        state = (jax.tree.map(_together, carry), pool)
        carry, pool = lax.fori_loop(jnp.minimum(first // size, blocks), blocks, step, state)
        return jax.tree.map(lambda x: _apart(x, group), carry), pool, blocks * pages

    def prefill(self, q: Array, out: Array, pool: Pool) -> tuple[Array, Pool]:
        """The sequences after num_decode, a tile of query tokens at a time, written into `out` [T, H, V]."""
        num_tokens = q.shape[0]
        if num_tokens == 1:
            return out, pool  # a batch of one token is all decode
        batch = self.batch
        tile = min(QUERY_TILE, num_tokens)
        row = jnp.arange(batch.page_table.shape[0])
        live = (row >= batch.num_decode) & (row < batch.num_seqs)
        lengths = jnp.where(live, batch.cu_q_lens[1:] - batch.cu_q_lens[:-1], 0)
        tiles_before = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(_cdiv(lengths, tile))])
        padded = jnp.pad(q, ((0, tile), (0, 0), (0, 0)))
        out = jnp.pad(out, ((0, tile), (0, 0), (0, 0)))

        def one_tile(t: Array, state: tuple[Array, Pool]) -> tuple[Array, Pool]:
            out, pool = state
            seq = jnp.searchsorted(tiles_before, t, side="right") - 1
            offset = (t - tiles_before[seq]) * tile
            start = batch.cu_q_lens[seq] + offset
            count = jnp.minimum(lengths[seq] - offset, tile)
            first = batch.kv_lens[seq] - lengths[seq] + offset  # position of the tile's first token
            done, pool = self._tile(lax.dynamic_slice_in_dim(padded, start, tile), seq, first, count, pool)
            kept = lax.dynamic_slice_in_dim(out, start, tile)
            done = jnp.where((jnp.arange(tile) < count)[:, None, None], done, kept)
            return lax.dynamic_update_slice_in_dim(out, done, start, 0), pool

        out, pool = lax.fori_loop(0, tiles_before[-1], one_tile, (out, pool))
        return out[:num_tokens], pool

    def _tile(self, q: Array, seq: Array, first: Array, count: Array, pool: Pool) -> tuple[Array, Pool]:
        """The `count` first of a tile's tokens [tile, H, C], which stand from position `first` on in one sequence."""
        tile, num_heads, head_dim = q.shape
        num_kv_heads = _kv_heads(pool)
        group = num_heads // num_kv_heads
        pages = _pages_per_block(PREFILL_BLOCK, pool)
        size = pages * _page_size(pool)
        rows = q.reshape(tile, num_kv_heads, group, head_dim).transpose(1, 0, 2, 3)
        rows = rows.reshape(1, num_kv_heads, tile * group, head_dim)
        # The tile's spare rows stand at its last token: further on, nothing of this sequence is written yet.
        position = jnp.repeat(first + jnp.minimum(jnp.arange(tile), count - 1), group)[None]

        def step(i: Array, state: tuple[Carry, Pool]) -> tuple[Carry, Pool]:
            carry, pool = state
            table = lax.dynamic_slice(self.batch.page_table, (seq, i * pages), (1, pages))
            return self._add_pages(carry, rows, pool, table, i * size, position), pool

        carry = begin(rows, self._value_dim(q), self.sinks, tile)
        carry, pool = lax.fori_loop(self._first_visible(first) // size, _cdiv(first + count, size), step, (carry, pool))
        done = finish(carry).reshape(num_kv_heads, tile, group, -1).transpose(1, 0, 2, 3)
        return done.reshape(tile, num_heads, -1).astype(q.dtype), pool

    def _add_pages(
        self, carry: Carry, rows: Array, pool: Pool, table: Array, first_key: Array, position: Array
    ) -> Carry:
        keys_values = read_pages(pool, table, self.layer)
        return add_block(carry, rows, keys_values, first_key, position, self.options, self.window)

    def _first_visible(self, position: Array) -> Array:
        if self.window is None:
            return jnp.zeros_like(position)
        return jnp.maximum(first_visible(position, self.window, self.options), 0)

    def _value_dim(self, q: Array) -> int:
        return q.shape[2] if self.options.value_dim is None else self.options.value_dim


def shared_pages(table: Array, live: Array, lens: Array, page_size: int) -> Array:
    """How many leading pages, full ones, all live rows of the table [S, P] have in common; 0 if only one is live.

    The live rows come first. An equal page is equal contents: the table alone says what may be read once.
    """
    common = jnp.cumprod(jnp.all((table == table[0]) | ~live[:, None], axis=0))
    full = jnp.min(jnp.where(live, lens, jnp.iinfo(jnp.int32).max)) // page_size
    count = jnp.minimum(jnp.sum(common), full)
    return jnp.where(jnp.sum(live) > 1, count, 0).astype(jnp.int32)


def _together(x: Array) -> Array:
    """[S, K, G, ...] -> [1, K, S * G, ...]: the query rows of all sequences, as if of one."""
    return jnp.moveaxis(x, 0, 1).reshape(1, x.shape[1], -1, *x.shape[3:])


def _apart(x: Array, group: int) -> Array:
    """[1, K, S * G, ...] -> [S, K, G, ...]"""
    return jnp.moveaxis(x.reshape(x.shape[1], -1, group, *x.shape[3:]), 0, 1)


def _kv_heads(pool: Pool) -> int:
    return max(1, values_of(pool).shape[3] // 2)


def _page_size(pool: Pool) -> int:
    return values_of(pool).shape[2]


def _pages_per_block(keys: int, pool: Pool) -> int:
    """Whole pages that make a block of about `keys` keys."""
    return max(1, keys // _page_size(pool))


def _cdiv(a: Array, b: int) -> Array:
    return (a + b - 1) // b
