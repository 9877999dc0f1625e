"""The attending warpgroups of the prefill kernel: 64 query rows each, scores and output in registers."""

from __future__ import annotations

from dataclasses import dataclass

import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import Array, lax

from pallas_kernels.gpu.hopper import Ref, accumulator, accumulator_of, load
from pallas_kernels.gpu.prefill_cut import Item, PrefillCut, PrefillRefs
from pallas_kernels.gpu.prefill_schedule import TILE, staged_columns
from pallas_kernels.gpu.softmax import LEAST_SUM, LOWEST, logits

Carry = tuple[Array, Array, Array]  # running output [TILE, C], maximum [TILE] in powers of two, sum [TILE]


def add_weighted_values(output: Array, weights: Array, values: Ref) -> Array:
    """output [TILE, C] + weights [TILE, keys] @ values [keys, C], in place in the output's registers."""

    def multiply(sums: Ref) -> None:
        plgpu.wgmma(sums, weights, values)

    return pl.run_state(multiply)(accumulator_of(output))


@dataclass(frozen=True)
class AttendingWarpgroup:
    cut: PrefillCut
    refs: PrefillRefs
    warpgroup: Array  # 0 or 1

    def attend(self, index: Array, unit: Array) -> None:
        """One item: the warpgroup's TILE rows of it. `unit` is how many units of the ring were used before it."""
        cut, refs, warpgroup = self.cut, self.refs, self.warpgroup
        item, first = cut.item(refs, index), warpgroup * TILE
        ready = refs.queries_ready.at[warpgroup]
        plgpu.copy_gmem_to_smem(self.rows_of(refs.q, item, first, TILE), refs.queries.at[warpgroup], ready)
        plgpu.barrier_wait(ready)
        scaled, shift = item.scaled + first, unit - 2 * item.begin
        carry = self.empty(item, scaled)
        pl.when(warpgroup == 1)(self.take_turns)

        def step(block: Array, carry: Carry, *, masked: bool) -> Carry:
            return self.attend_block(block, shift + 2 * block, scaled, carry, masked=masked)

        # Only the blocks on the edges of what the tile sees are masked.
        heads, keys = cut.blocks.heads, cut.blocks.keys
        inside_end = lax.div(lax.div(scaled, heads) + 1, keys)
        inside = item.begin
        if cut.windowed:
            last = lax.div(scaled + TILE - 1, heads)
            hidden = jnp.maximum(last + 1 - self.window(item), 0)
            inside = jnp.clip(lax.div(hidden + keys - 1, keys), item.begin, item.end)
            carry = lax.fori_loop(item.begin, inside, lambda i, c: step(i, c, masked=True), carry)
        inside_end = jnp.clip(inside_end, inside, item.end)
        carry = lax.fori_loop(inside, inside_end, lambda i, c: step(i, c, masked=False), carry)
        output, _, total = lax.fori_loop(inside_end, item.end, lambda i, c: step(i, c, masked=True), carry)

        pl.when(warpgroup == 0)(self.take_turns)
        output = output / lax.broadcast_in_dim(jnp.maximum(total, LEAST_SUM), output.shape, [0])
        self.store(cut.item(refs, index), first, output.astype(jnp.bfloat16))

    def window(self, item: Item) -> Array:
        """At most the sequence's length, which hides nothing and keeps sums from overflowing."""
        return jnp.minimum(self.refs.ins["window"][0], item.length)

    def take_turns(self) -> None:
        """The attending warpgroups meet: one does its softmax while the other has the tensor cores."""
        plgpu.barrier_arrive(self.refs.turn)
        plgpu.barrier_wait(self.refs.turn)

    def empty(self, item: Item, scaled: Array) -> Carry:
        """The online softmax before any key. A sink is a key that was seen and has no value."""
        rows = plgpu.Layout.WGMMA.reduce(1)
        output = plgpu.layout_cast(jnp.zeros((TILE, self.cut.shape.head_dim), jnp.float32), plgpu.Layout.WGMMA)
        if self.cut.sunk:
            phase = lax.rem(scaled, self.cut.blocks.heads)
            maximum = load(self.refs.ins["sinks"].at[item.head, phase], rows, optimized=False)
            return output, maximum, plgpu.layout_cast(jnp.ones((TILE,), jnp.float32), rows)
        maximum = plgpu.layout_cast(jnp.full((TILE,), LOWEST, jnp.float32), rows)
        return output, maximum, plgpu.layout_cast(jnp.zeros((TILE,), jnp.float32), rows)

    def attend_block(self, block: Array, unit: Array, scaled: Array, carry: Carry, *, masked: bool) -> Carry:
        """One step of the online softmax (Milakov and Gimelshein, arXiv 1805.02867), in base 2."""
        refs, units = self.refs, self.cut.blocks.units
        output, maximum, total = carry
        key_slot, value_slot = lax.rem(unit, units), lax.rem(unit + 1, units)
        scores, factor = logits(self.scores(key_slot), self.cut.options)
        if masked:
            scores = self.mask(scores, block, scaled)
        new_maximum = jnp.maximum(maximum, scores.max(axis=1) * factor)
        weights = jnp.exp2(scores * factor - lax.broadcast_in_dim(new_maximum, scores.shape, [0]))
        shrink = jnp.exp2(maximum - new_maximum)
        output = output * lax.broadcast_in_dim(shrink, output.shape, [0])
        total = total * shrink + weights.sum(axis=1)
        rounded = weights.astype(jnp.bfloat16)
        # Without it the compiler moves the softmax past the turn, and the tensor cores wait for it.
        output, total, new_maximum, rounded = lax.optimization_barrier((output, total, new_maximum, rounded))
        plgpu.barrier_arrive(refs.turn)
        plgpu.barrier_wait(refs.ready.at[value_slot])
        plgpu.barrier_wait(refs.turn)
        output = add_weighted_values(output, rounded, refs.ring.at[value_slot])
        plgpu.barrier_arrive(refs.free.at[value_slot])
        return output, new_maximum, total

    def scores(self, slot: Array) -> Array:
        """[TILE, keys]: the warpgroup's queries times the keys in that slot, which is free afterwards."""
        refs = self.refs
        plgpu.barrier_wait(refs.ready.at[slot])

        def multiply(sums: Ref) -> Array:
            # Looked up anew for each block, by an index that the compiler takes for a new one: it would keep the
            # descriptors of all columns otherwise, 32 registers at 256, for as long as the kernel runs.
            queries = refs.queries.at[lax.optimization_barrier(self.warpgroup)]
            plgpu.wgmma(sums, queries, refs.ring.at[slot].transpose((1, 0)))
            self.take_turns()
            return sums[...]

        scores = pl.run_scoped(multiply, accumulator(TILE, self.cut.blocks.keys))
        plgpu.barrier_arrive(refs.free.at[slot])
        return scores

    def mask(self, scores: Array, block: Array, scaled: Array) -> Array:
        heads, keys, rows = self.cut.blocks.heads, self.cut.blocks.keys, plgpu.Layout.WGMMA.reduce(1)
        key = plgpu.broadcasted_iota(jnp.int32, scores.shape, 1, layout=plgpu.Layout.WGMMA) * heads
        # Of the block's keys, times heads, those up to the bound are visible. One bound a row: registers are scarce.
        bound = plgpu.broadcasted_iota(jnp.int32, (TILE,), 0, layout=rows) + (scaled - block * keys * heads)
        visible = key <= lax.broadcast_in_dim(bound, scores.shape, [0])
        if self.cut.windowed:
            # A window that hides nothing of the tile is cut to its size, or the product would overflow.
            window = jnp.minimum(self.refs.ins["window"][0], lax.div(scaled + TILE, heads) + 1)
            visible &= key > lax.broadcast_in_dim(bound - window * heads, scores.shape, [0])
        return jnp.where(visible, scores, -jnp.inf)

    def rows_of(self, ref: Ref, item: Item, first: Array, count: int) -> Ref:
        """`count` rows of the item's tile in q or in the output, from row `first` of the tile on."""
        rows = pl.ds(item.row + first, count)
        return ref.at[rows, item.head] if self.cut.blocks.heads == 1 else ref.at[item.head, rows]

    def store(self, item: Item, first: Array, output: Array) -> None:
        """The rows that are the item's own: those that follow belong to the next sequence."""
        count = jnp.minimum(item.count - first, TILE)
        pl.when(count == TILE)(lambda: self.store_tile(item, first, output))
        pl.when((count > 0) & (count < TILE))(lambda: self.store_rows(item, first, count, output))

    def store_tile(self, item: Item, first: Array, output: Array) -> None:
        queries = self.refs.queries.at[self.warpgroup]
        queries[...] = output
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(queries, self.rows_of(self.refs.out, item, first, TILE))
        plgpu.wait_smem_to_gmem(0)

    def store_rows(self, item: Item, first: Array, count: Array, output: Array) -> None:
        """Any count is a sum of powers of two. Swizzled rows go by eights, so these pass through plain ones."""
        staged, head_dim = self.refs.staged.at[self.warpgroup], self.cut.shape.head_dim
        columns = staged_columns(head_dim)
        for column in range(0, head_dim, columns):
            staged[...] = output[:, column : column + columns]
            plgpu.commit_smem()
            for size in (64, 32, 16, 8, 4, 2, 1):
                at = lax.div(count, 2 * size) * (2 * size)
                to = self.rows_of(self.refs.out, item, first + at, size).at[:, pl.ds(column, columns)]

                @pl.when(lax.rem(lax.div(count, size), 2) == 1)
                def _(at: Array = at, to: Ref = to, size: int = size) -> None:
                    plgpu.copy_smem_to_gmem(staged.at[pl.ds(at, size)], to)

            plgpu.wait_smem_to_gmem(0)
