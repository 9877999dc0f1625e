"""Attention of the sequences that decode: one query token each, whose key and value are written on the way.

The grid walks tiles of sequences; inside, one stream of KV blocks runs over all sequences of the batch, so that the
next sequence's first pages are already on their way while this one's last block is attended to.

    for each sequence, for each of its blocks:
        start the copies of the block that comes buffers-1 later (of whichever sequence)
        wait for this one; in the last block put the new row into its place, and send its tile of rows to the pool
        scores, online softmax, weighted values

Query heads are packed in row groups: at least 8 rows, so that small groups share the rows that a register has anyway.
The pool may be written while later sequences' pages are read: two sequences never share a page that is written.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.ragged import RaggedBatch
from pallas_kernels.tpu.page_ring import PageRing, Pages, Ref, Span, div, keep_rows
from pallas_kernels.tpu.pool_layout import round_up, rows_per_tile
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

SUBLANES = 8
NEXT_SEQUENCE, NEXT_BLOCK, STARTED, TAKEN, WRITTEN = range(5)  # places of the walk's state in SMEM
LAYER, NUM_DECODE, WINDOW = range(3)  # places of the scalar operands


@dataclass(frozen=True)
class RowGroups:
    """KV heads share rows: `heads` of them in each group of `rows` query rows."""

    heads: int
    rows: int
    count: int

    @classmethod
    def of(cls, kv_heads: int, group: int) -> "RowGroups":
        if group >= SUBLANES:
            return cls(1, round_up(group, SUBLANES), kv_heads)
        padded = 1 << (group - 1).bit_length()
        heads = min(SUBLANES // padded, 1 << (kv_heads - 1).bit_length())
        return cls(heads, SUBLANES, -(-kv_heads // heads))

    @property
    def rows_per_head(self) -> int:
        """Rows that one KV head has in its group, padding included."""
        return self.rows // self.heads

    def pack(self, q: Array) -> Array:
        """[S, K, G, lanes] to [S, count, rows, lanes]."""
        num, kv_heads, group, lanes = q.shape
        spare = (0, self.count * self.heads - kv_heads), (0, self.rows_per_head - group)
        return jnp.pad(q, ((0, 0), *spare, (0, 0))).reshape(num, self.count, self.rows, lanes)

    def unpack(self, out: Array, kv_heads: int, group: int) -> Array:
        """[S, count, rows, lanes] to [S, K, G, lanes]."""
        out = out.reshape(out.shape[0], self.count * self.heads, self.rows_per_head, out.shape[3])
        return out[:, :kv_heads, :group]


@dataclass(frozen=True)
class DecodeTiles:
    """Sizes of the decode kernel: sequences a grid step, pages a block, buffers, cores that split the sequences."""

    sequences: int
    pages_per_block: int
    buffers: int
    cores: int = 1
    vmem_limit: int | None = None


def decode(
    q: Array,  # [N, K, G, C] of the first N tokens; the first num_decode are one sequence each
    new: Pages,  # values [N, W] float32, scales [N, 2K]
    pool: Pages,
    layer: Array,
    batch: RaggedBatch,
    heads: Heads,
    window: Array | None,
    sinks: Array | None,  # [H]
    tiles: DecodeTiles,
    interpret: Any,
) -> tuple[Array, Pages]:
    """([N, K, G, C or value_dim] of which the first num_decode are right and the rest arbitrary, pool)."""
    num, kv_heads, group, _ = q.shape
    layout, groups = heads.layout, RowGroups.of(kv_heads, group)
    padded = round_up(num, tiles.sequences * tiles.cores)
    spare = padded - num
    rows = jnp.pad(groups.pack(layout.place_queries(q)), ((0, spare), (0, 0), (0, 0), (0, 0)))
    new = jax.tree.map(lambda x: jnp.pad(x, ((0, spare), (0, 0))), new)
    if new.scales is not None:
        new = new._replace(scales=jnp.broadcast_to(new.scales[:, :, None], (*new.scales.shape, 128)))
    first = None
    if sinks is not None:
        first = groups.pack(sinks.astype(jnp.float32).reshape(1, kv_heads, group, 1))[0]
        first = jnp.broadcast_to(first, (groups.count, groups.rows, 128))
    steps = padded // (tiles.sequences * tiles.cores)
    limit = jnp.minimum(batch.num_decode, num)
    scalars = jnp.stack([layer, limit, jnp.int32(0) if window is None else window])
    out_shape = (padded, groups.count, groups.rows, layout.value_width)

    def tile(core: Array, step: Array, table: Ref, lens: Ref, scalars: Ref) -> Array:
        # A step beyond the last live tile stays on that tile: nothing moves for it. Cores keep to their own tiles.
        last = div(scalars[NUM_DECODE] + tiles.sequences - 1, tiles.sequences) - 1
        return core * steps + jnp.clip(last - core * steps, 0, step)

    def per_tile(*shape: int) -> pl.BlockSpec:
        return pl.BlockSpec((tiles.sequences, *shape), lambda *at: (tile(*at), *(0 for _ in shape)))

    whole = pl.BlockSpec(memory_space=pl.ANY)
    pool_specs = jax.tree.map(lambda _: whole, pool)
    out, *written = pl.pallas_call(
        partial(_kernel, heads=heads, groups=groups, tiles=tiles, table_width=batch.page_table.shape[1]),
        out_shape=(
            jax.ShapeDtypeStruct(out_shape, q.dtype),
            jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), pool),
        ),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=3,
            grid=(tiles.cores, steps),
            in_specs=[
                per_tile(*rows.shape[1:]),
                jax.tree.map(lambda x: per_tile(*x.shape[1:]), new),
                None if first is None else pl.BlockSpec(first.shape, lambda *_: (0, 0, 0)),
                pool_specs,
            ],
            out_specs=(per_tile(*out_shape[1:]), pool_specs),
            scratch_shapes=_scratch(pool, tiles),
        ),
        input_output_aliases=_pool_aliases(3 + 1 + len(jax.tree.leaves((new, first))), pool),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary"), vmem_limit_bytes=tiles.vmem_limit
        ),
        interpret=interpret,
        name="paged_decode",
    )(batch.page_table.reshape(-1), batch.kv_lens, scalars, rows, new, first, pool)
    out = groups.unpack(out, kv_heads, group)[:num]
    return layout.take_values(out), written[0]


def _pool_aliases(operand: int, pool: Pages) -> dict[int, int]:
    """The pool's operands begin at that place; among the results they follow the output."""
    return {operand + i: 1 + i for i in range(len(jax.tree.leaves(pool)))}


def _scratch(pool: Pages, tiles: DecodeTiles) -> list[Any]:
    _, _, page_size, width = pool.values.shape
    strip = rows_per_tile(pool.values.dtype)
    ring = (tiles.buffers, tiles.pages_per_block)
    values = pltpu.VMEM((*ring, page_size, width), pool.values.dtype)
    sent = pltpu.VMEM((2, strip, width), pool.values.dtype)
    scales = sent_scales = None
    if pool.scales is not None:
        scales = pltpu.VMEM((*ring, *pool.scales.shape[2:]), jnp.float32)
        sent_scales = pltpu.VMEM((2, *pool.scales.shape[2:]), jnp.float32)
    return [
        Pages(values, scales),
        Pages(sent, sent_scales),
        pltpu.SemaphoreType.DMA((tiles.buffers,)),
        pltpu.SemaphoreType.DMA((2,)),
        pltpu.SMEM((5,), jnp.int32),
    ]


def _kernel(
    table: Ref,
    lens: Ref,
    scalars: Ref,
    q: Ref,  # [sequences, count, rows, key_width]
    new: Pages,  # values [sequences, W], scales [sequences, 2K, 128]
    sinks: Ref | None,  # [count, rows, 128]
    before: Pages,  # `pool` is the same memory
    out: Ref,  # [sequences, count, rows, value_width]
    pool: Pages,
    buffer: Pages,
    outgoing: Pages,
    arrived: Ref,
    sent: Ref,
    walk: Ref,
    *,
    heads: Heads,
    groups: RowGroups,
    tiles: DecodeTiles,
    table_width: int,
) -> None:
    del before
    core, step, steps = pl.program_id(0), pl.program_id(1), pl.num_programs(1)
    first = core * steps * tiles.sequences
    end = jnp.minimum(first + steps * tiles.sequences, scalars[NUM_DECODE])
    window = scalars[WINDOW] if heads.has_window else None
    ring = PageRing(pool, buffer, arrived, table, table_width, scalars[LAYER])

    def span_of(sequence: Array) -> Span:
        length = lens[jnp.minimum(sequence, lens.shape[0] - 1)]
        return Span(sequence, first_visible(jnp.maximum(length - 1, 0), window, heads.options), length)

    def start_next() -> None:
        sequence, block = walk[NEXT_SEQUENCE], walk[NEXT_BLOCK]

        @pl.when(sequence < end)
        def _() -> None:
            span = span_of(sequence)
            ring.start(span, block, lax.rem(walk[STARTED], tiles.buffers))
            walk[STARTED] += 1
            more = block + 1 < ring.blocks(span)[1]
            walk[NEXT_SEQUENCE] = jnp.where(more, sequence, sequence + 1)
            walk[NEXT_BLOCK] = jnp.where(more, block + 1, ring.blocks(span_of(sequence + 1))[0])

    @pl.when(step == 0)
    def _() -> None:
        walk[NEXT_SEQUENCE], walk[NEXT_BLOCK] = first, ring.blocks(span_of(first))[0]
        walk[STARTED], walk[TAKEN], walk[WRITTEN] = jnp.int32(0), jnp.int32(0), jnp.int32(0)
        for _ in range(tiles.buffers - 1):
            start_next()

    writer = RowWriter(ring, new, outgoing, sent, walk)
    tile_first = first + step * tiles.sequences

    def one_sequence(row: Array, _: None) -> None:
        span = span_of(tile_first + row)
        begin, last = ring.blocks(span)

        def one_block(block: Array, state: list[Any]) -> list[Any]:
            start_next()
            slot = lax.rem(walk[TAKEN], tiles.buffers)
            walk[TAKEN] += 1
            ring.wait(span, block, slot)

            @pl.when((block == last - 1) & (span.end > 0))
            def _() -> None:
                writer.write(span, block, slot, row)

            ring.clear_outside(span, block, slot)

            return _attend(q, row, buffer, slot, span, block * ring.block_size, state, heads, groups)

        state = lax.fori_loop(begin, last, one_block, _begin(heads, groups, sinks))
        for i, (_, total, output) in enumerate(state):
            out[row, i] = (output / jnp.maximum(total, SMALLEST_SUM)).astype(out.dtype)

    lax.fori_loop(0, jnp.clip(end - tile_first, 0, tiles.sequences), one_sequence, None)

    @pl.when(step == steps - 1)
    def _() -> None:
        writer.finish()


@dataclass(frozen=True)
class RowWriter:
    """Puts a sequence's new row into its block, and the tile of rows around it back to the pool.

    Two tiles may be under way at a time, each from a copy of its own: the block's buffer is soon used again.
    """

    ring: PageRing
    new: Pages
    outgoing: Pages
    sent: Ref
    walk: Ref

    def write(self, span: Span, block: Array, slot: Array, row: Array) -> None:
        ring, side = self.ring, lax.rem(self.walk[WRITTEN], 2)
        position = span.end - 1
        place = div(position, ring.page_size)
        page = ring.table[span.sequence * ring.table_width + place]
        place, at = place - block * ring.pages_per_block, lax.rem(position, ring.page_size)
        strip = self.outgoing.values.shape[1]
        rows = pl.ds(pl.multiple_of(div(at, strip) * strip, strip), strip)

        @pl.when(self.walk[WRITTEN] >= 2)
        def _() -> None:
            self._wait(side)

        values, changed = ring.buffer.values, lax.rem(at, strip)
        old = values[slot, place, rows, :]
        added = jnp.broadcast_to(self.new.values[pl.ds(row, 1), :], old.shape)
        merged = keep_rows(old, lambda number: number != changed, added)
        values[slot, place, rows, :] = merged
        self.outgoing.values[side] = merged
        if self.new.scales is not None:
            scales = ring.buffer.scales
            old = scales[slot, place]
            lane = lax.broadcasted_iota(jnp.int32, old.shape, 1)
            merged = jnp.where(lane == at, self.new.scales[row][:, :1], old)
            scales[slot, place] = merged
            self.outgoing.scales[side] = merged
        for copy in self._copies(page, rows, side):
            copy.start()
        self.walk[WRITTEN] += 1

    def finish(self) -> None:
        """Waits for the tiles that are still under way."""
        for age in (1, 2):

            @pl.when(self.walk[WRITTEN] >= age)
            def _(age: int = age) -> None:
                self._wait(lax.rem(self.walk[WRITTEN] - age, 2))

    def _wait(self, side: Array) -> None:
        # A wait counts bytes: any copy of the same size stands for the one that was started.
        for copy in self._copies(jnp.int32(0), pl.ds(0, self.outgoing.values.shape[1]), side):
            copy.wait()

    def _copies(self, page: Array, rows: Any, side: Array) -> list[Any]:
        pool, layer = self.ring.pool, self.ring.layer
        copies = [
            pltpu.make_async_copy(self.outgoing.values.at[side], pool.values.at[page, layer, rows], self.sent.at[side])
        ]
        if pool.scales is not None:
            copies.append(
                pltpu.make_async_copy(self.outgoing.scales.at[side], pool.scales.at[page, layer], self.sent.at[side])
            )
        return copies


def _begin(heads: Heads, groups: RowGroups, sinks: Ref | None) -> list[Any]:
    """Running maximum, sum and output of each row group. A sink is a key that was seen and has no value."""
    output = jnp.zeros((groups.rows, heads.layout.value_width), jnp.float32)
    column = jnp.zeros((groups.rows, 1), jnp.float32)
    if sinks is None:
        return [(column + NEGATIVE, column, output) for _ in range(groups.count)]
    return [(sinks[i][:, :1], column + 1, output) for i in range(groups.count)]


def _attend(
    q: Ref,
    row: Array,
    buffer: Pages,
    slot: Array,
    span: Span,
    block_begin: Array,
    state: list[Any],
    heads: Heads,
    groups: RowGroups,
) -> list[Any]:
    """One step of the online softmax for all heads of one sequence."""
    layout, options = heads.layout, heads.options
    block_size = buffer.values.shape[1] * buffer.values.shape[2]
    position = block_begin + lax.broadcasted_iota(jnp.int32, (1, block_size), 1)
    visible = (position >= span.begin) & (position < span.end)
    owner = div(lax.broadcasted_iota(jnp.int32, (groups.rows, 1), 0), groups.rows_per_head)
    result = []
    for i, (maximum, total, output) in enumerate(state):
        members = [(n, i * groups.heads + n) for n in range(groups.heads) if i * groups.heads + n < layout.kv_heads]
        queries = q[row, i]
        score = jnp.zeros((groups.rows, block_size), jnp.float32)
        for n, head in members:
            own = (
                queries if groups.heads == 1 else keep_rows(queries, lambda at, n=n: div(at, groups.rows_per_head) == n)
            )
            part = product(own, read(buffer, slot, layout.keys(head), q.dtype), ((1,), (1,)))
            scales = read_scales(buffer, slot, layout.scale_row(head, value=False), visible)
            score += part if scales is None else part * scales
        score = jnp.where(visible, capped(score * options.scale, options), HIDDEN)
        new_maximum = jnp.maximum(maximum, score.max(axis=1, keepdims=True))
        weights = jnp.exp(score - new_maximum)
        shrink = jnp.exp(maximum - new_maximum)
        total = total * shrink + weights.sum(axis=1, keepdims=True)
        output = output * shrink
        for n, head in members:
            own = weights if groups.heads == 1 else jnp.where(owner == n, weights, 0.0)
            scales = read_scales(buffer, slot, layout.scale_row(head, value=True), visible)
            own = own if scales is None else own * scales
            values = read(buffer, slot, layout.values(head), q.dtype)
            output += product(own.astype(values.dtype), values, ((1,), (0,)))
        result.append((new_maximum, total, output))
    return result
