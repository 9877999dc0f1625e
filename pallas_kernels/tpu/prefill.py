"""Attention of prefill chunks: tiles of query tokens against the pages of their sequences.

A tile is `queries` tokens of the flat batch, aligned, so that queries and outputs travel by themselves. It may hold
several sequences: they are attended to in turn, each over the blocks that its tokens in this tile can see, and only
its own rows take the result. One stream of KV blocks runs through all tiles, as in decode.

    tile        |      0      |      1      |
    sequences   | - | A A A A | A A B B C C | C ...          runs: (0, A) (1, A) (1, B) (1, C) (2, C) ...

The pages were written before (page_writes): reads need not wait for writes of the same call.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.ragged import RaggedBatch
from pallas_kernels.tpu.page_ring import PageRing, Pages, Ref, Span, div
from pallas_kernels.tpu.pool_layout import LANES, round_up
from pallas_kernels.tpu.softmax import (
    HIDDEN,
    NEGATIVE,
    SMALLEST_SUM,
    Heads,
    capped,
    first_visible,
    product,
    read,
    read_scales,
)
from pallas_kernels.tpu.walk import following, sequence_at

NEXT_SEQUENCE, NEXT_TOKEN, NEXT_BLOCK, STARTED, TAKEN, SEQUENCE, TOKEN = range(7)  # the walk's state in SMEM
LAYER, NUM_DECODE, NUM_SEQS, WINDOW = range(4)  # places of the scalar operands


@dataclass(frozen=True)
class PrefillTiles:
    """Sizes of the prefill kernel: tokens a tile, pages a block, buffers, cores that split the tiles."""

    queries: int
    pages_per_block: int
    buffers: int
    cores: int = 1
    vmem_limit: int | None = None


class Run(NamedTuple):
    """The tokens token .. end-1 of the batch: those of one sequence in one tile. `span` is what they may see."""

    sequence: Array
    token: Array
    end: Array
    shift: Array  # position minus token
    span: Span


def prefill(
    q: Array,  # [T, K, G, C]
    pool: Pages,
    layer: Array,
    batch: RaggedBatch,
    heads: Heads,
    window: Array | None,
    sinks: Array | None,  # [H]
    tiles: PrefillTiles,
    interpret: Any,
) -> Array:
    """[T, K, G, C or value_dim], right for the tokens of sequences num_decode .. num_seqs-1 and else arbitrary."""
    num, kv_heads, group, _ = q.shape
    layout, queries = heads.layout, tiles.queries
    padded = round_up(num, queries * tiles.cores)
    rows = layout.place_queries(q).transpose(1, 2, 0, 3)
    rows = jnp.pad(rows, ((0, 0), (0, 0), (0, padded - num), (0, 0)))
    steps = padded // (queries * tiles.cores)
    layer_and_counts = [layer, batch.num_decode, batch.num_seqs]
    scalars = jnp.stack([*layer_and_counts, jnp.int32(0) if window is None else window])
    sinks = None if sinks is None else sinks.astype(jnp.float32)

    def tile(core: Array, step: Array, table: Ref, lens: Ref, starts: Ref, scalars: Ref) -> Array:
        # A step on a tile without prefill stays on the nearest live one: nothing moves for it. Cores keep to their own.
        first = div(starts[scalars[NUM_DECODE]], queries) - core * steps
        last = div(jnp.maximum(starts[scalars[NUM_SEQS]] - 1, 0), queries) - core * steps
        return core * steps + jnp.clip(jnp.clip(step, jnp.minimum(first, last), last), 0, steps - 1)

    def per_tile(lanes: int) -> pl.BlockSpec:
        return pl.BlockSpec((kv_heads, group, queries, lanes), lambda *at: (0, 0, tile(*at), 0))

    _, _, page_size, width = pool.values.shape
    ring = (tiles.buffers, tiles.pages_per_block)
    buffer = Pages(pltpu.VMEM((*ring, page_size, width), pool.values.dtype))
    if pool.scales is not None:
        buffer = buffer._replace(scales=pltpu.VMEM((*ring, *pool.scales.shape[2:]), jnp.float32))
    state = (kv_heads, group * queries)
    out = pl.pallas_call(
        partial(_kernel, heads=heads, tiles=tiles, table_width=batch.page_table.shape[1]),
        out_shape=jax.ShapeDtypeStruct((kv_heads, group, padded, layout.value_width), q.dtype),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=4,
            grid=(tiles.cores, steps),
            in_specs=[
                per_tile(layout.key_width),
                None if sinks is None else pl.BlockSpec(memory_space=pltpu.SMEM),
                jax.tree.map(lambda _: pl.BlockSpec(memory_space=pl.ANY), pool),
            ],
            out_specs=per_tile(layout.value_width),
            scratch_shapes=[
                buffer,
                pltpu.SemaphoreType.DMA((tiles.buffers,)),
                pltpu.VMEM((*state, LANES), jnp.float32),
                pltpu.VMEM((*state, LANES), jnp.float32),
                pltpu.VMEM((*state, layout.value_width), jnp.float32),
                pltpu.SMEM((7,), jnp.int32),
            ],
        ),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary"), vmem_limit_bytes=tiles.vmem_limit
        ),
        interpret=interpret,
        name="paged_prefill",
    )(batch.page_table.reshape(-1), batch.kv_lens, batch.cu_q_lens, scalars, rows, sinks, pool)
    return layout.take_values(out.transpose(2, 0, 1, 3)[:num])


def _kernel(
    table: Ref,
    lens: Ref,
    starts: Ref,
    scalars: Ref,
    q: Ref,  # [K, G, queries, key_width]
    sinks: Ref | None,  # [H] in SMEM
    pool: Pages,
    out: Ref,  # [K, G, queries, value_width]
    buffer: Pages,
    arrived: Ref,
    maximum: Ref,  # [K, G*queries, 128], each row the same number in all lanes; so is total
    total: Ref,
    output: Ref,  # [K, G*queries, value_width]
    walk: Ref,
    *,
    heads: Heads,
    tiles: PrefillTiles,
    table_width: int,
) -> None:
    core, step, steps = pl.program_id(0), pl.program_id(1), pl.num_programs(1)
    queries, num_seqs = tiles.queries, scalars[NUM_SEQS]
    window = scalars[WINDOW] if heads.has_window else None
    ring = PageRing(pool, buffer, arrived, table, table_width, scalars[LAYER])
    core_end = (core + 1) * steps * queries

    def run_of(sequence: Array, token: Array) -> Run:
        at = jnp.clip(sequence, 0, lens.shape[0] - 1)
        end = jnp.minimum(starts[at + 1], (div(token, queries) + 1) * queries)
        shift = lens[at] - starts[at + 1]
        begin = first_visible(jnp.maximum(token + shift, 0), window, heads.options)
        return Run(at, token, end, shift, Span(at, begin, end + shift))

    def after(run: Run) -> tuple[Array, Array]:
        return sequence_at(run.sequence, run.end, starts, num_seqs), run.end

    def alive(sequence: Array, token: Array, end: Array) -> Array:
        return (sequence < num_seqs) & (token < end)

    def start_next() -> None:
        sequence, token, block = walk[NEXT_SEQUENCE], walk[NEXT_TOKEN], walk[NEXT_BLOCK]

        @pl.when(alive(sequence, token, core_end))
        def _() -> None:
            run = run_of(sequence, token)
            ring.start(run.span, block, lax.rem(walk[STARTED], tiles.buffers))
            walk[STARTED] += 1
            more = block + 1 < ring.blocks(run.span)[1]
            next_sequence, next_token = after(run)
            walk[NEXT_SEQUENCE] = jnp.where(more, sequence, next_sequence)
            walk[NEXT_TOKEN] = jnp.where(more, token, next_token)
            next_block = ring.blocks(run_of(next_sequence, next_token).span)[0]
            walk[NEXT_BLOCK] = jnp.where(more, block + 1, next_block)

    @pl.when(step == 0)
    def _() -> None:
        sequence = following(scalars[NUM_DECODE], starts, num_seqs)
        token = jnp.maximum(starts[jnp.minimum(sequence, num_seqs)], core * steps * queries)
        sequence = sequence_at(sequence, token, starts, num_seqs)
        walk[SEQUENCE], walk[NEXT_SEQUENCE] = sequence, sequence
        walk[TOKEN], walk[NEXT_TOKEN] = token, token
        walk[NEXT_BLOCK] = ring.blocks(run_of(sequence, token).span)[0]
        walk[STARTED], walk[TAKEN] = jnp.int32(0), jnp.int32(0)
        for _ in range(tiles.buffers - 1):
            start_next()

    tile_begin = (core * steps + step) * queries
    tile = Tile(q, buffer, maximum, total, output, tile_begin, window, heads)

    def one_run(place: tuple[Array, Array]) -> tuple[Array, Array]:
        run = run_of(*place)

        def one_block(block: Array, _: None) -> None:
            start_next()
            slot = lax.rem(walk[TAKEN], tiles.buffers)
            walk[TAKEN] += 1
            ring.wait(run.span, block, slot)
            ring.clear_outside(run.span, block, slot)
            tile.attend(run, block * ring.block_size, slot)

        lax.fori_loop(*ring.blocks(run.span), one_block, None)
        return after(run)

    @pl.when(alive(walk[SEQUENCE], walk[TOKEN], tile_begin + queries))
    def _() -> None:
        tile.begin(sinks)
        place = walk[SEQUENCE], walk[TOKEN]
        place = lax.while_loop(lambda at: alive(*at, tile_begin + queries), one_run, place)
        walk[SEQUENCE], walk[TOKEN] = place
        for head in range(heads.layout.kv_heads):
            done = output[head] / jnp.maximum(total[head][:, :1], SMALLEST_SUM)
            out[head] = done.reshape(out.shape[1:]).astype(out.dtype)


@dataclass(frozen=True)
class Tile:
    """The online softmax of one tile's queries."""

    q: Ref
    buffer: Pages
    maximum: Ref
    total: Ref
    output: Ref
    begin_token: Array
    window: Array | None
    heads: Heads

    def begin(self, sinks: Ref | None) -> None:
        """Nothing seen yet; a sink is a key that was seen and has no value."""
        self.output[...] = jnp.zeros(self.output.shape, jnp.float32)
        if sinks is None:
            self.maximum[...] = jnp.full(self.maximum.shape, NEGATIVE, jnp.float32)
            self.total[...] = jnp.zeros(self.total.shape, jnp.float32)
            return
        self.total[...] = jnp.ones(self.total.shape, jnp.float32)
        kv_heads, group, queries, _ = self.q.shape
        for head in range(kv_heads):
            for member in range(group):
                rows = pl.ds(member * queries, queries)
                self.maximum[head, rows] = jnp.full((queries, LANES), sinks[head * group + member])

    def attend(self, run: Run, block_begin: Array, slot: Array) -> None:
        """One step of the online softmax for all heads, over the block whose first position is block_begin."""
        kv_heads, group, queries, _ = self.q.shape
        layout, options = self.heads.layout, self.heads.options
        block_size = self.buffer.values.shape[1] * self.buffer.values.shape[2]
        bias = self._bias(run, block_begin, block_size)
        position = block_begin + lax.broadcasted_iota(jnp.int32, (1, block_size), 1)
        seen = (position >= run.span.begin) & (position < run.span.end)
        token = self.begin_token + lax.broadcasted_iota(jnp.int32, (group, queries, 1), 1)
        own = ((token >= run.token) & (token < run.end)).reshape(group * queries, 1)
        for head in range(kv_heads):
            query = self.q[head].reshape(group * queries, -1)
            score = product(query, read(self.buffer, slot, layout.keys(head), query.dtype), ((1,), (1,)))
            scales = read_scales(self.buffer, slot, layout.scale_row(head, value=False), seen)
            if scales is not None:
                score = score * scales
            score = capped(score * options.scale, options)
            score = (score.reshape(group, queries, block_size) + bias).reshape(score.shape)
            old_maximum, old_total = self.maximum[head], self.total[head]
            new_maximum = jnp.maximum(old_maximum, score.max(axis=1, keepdims=True))
            weights = jnp.exp(score - new_maximum[:, :1])
            shrink = jnp.exp(old_maximum - new_maximum)
            new_total = old_total * shrink + weights.sum(axis=1, keepdims=True)
            scales = read_scales(self.buffer, slot, layout.scale_row(head, value=True), seen)
            if scales is not None:
                weights = weights * scales
            values = read(self.buffer, slot, layout.values(head), query.dtype)
            added = product(weights.astype(values.dtype), values, ((1,), (0,)))
            # Rows of other sequences keep what they have: not even a NaN of this one may reach them.
            self.maximum[head] = jnp.where(own, new_maximum, old_maximum)
            self.total[head] = jnp.where(own, new_total, old_total)
            self.output[head] = jnp.where(own, self.output[head] * shrink[:, :1] + added, self.output[head])

    def _bias(self, run: Run, block_begin: Array, block_size: int) -> Array:
        """[1, queries, block_size]: HIDDEN where a token does not see a position, else 0."""
        shape = (1, self.q.shape[2], block_size)
        query = self.begin_token + run.shift + lax.broadcasted_iota(jnp.int32, shape, 1)
        key = block_begin + lax.broadcasted_iota(jnp.int32, shape, 2)
        hidden = key > query
        if self.window is not None:
            hidden |= key < self._first_visible(run, query)
        return jnp.where(hidden, HIDDEN, 0.0)

    def _first_visible(self, run: Run, query: Array) -> Array:
        """first_visible of each token of the run. Chunks are counted from the run's first one: no vector division."""
        assert self.window is not None
        if not self.heads.options.chunked:
            return query - self.window + 1
        begin = run.span.begin
        passed = (query - begin).astype(jnp.float32) + 0.5  # small and half a step from a border: exact in float32
        return begin + self.window * jnp.floor(passed / self.window.astype(jnp.float32)).astype(jnp.int32)
