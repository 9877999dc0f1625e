"""The fetching warpgroup of the prefill kernel: pages, from wherever they lie, into a ring in shared memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import Array, lax

from pallas_kernels.gpu.hopper import Ref, load
from pallas_kernels.gpu.page_tiles import tile_columns
from pallas_kernels.gpu.prefill_cut import Item, PrefillCut, PrefillRefs
from pallas_kernels.gpu.prefill_schedule import TILE


@dataclass(frozen=True)
class FetchingWarpgroup:
    cut: PrefillCut
    refs: PrefillRefs

    def fetch(self, index: Array, unit: Array) -> None:
        """All blocks of one item. `unit` is how many units of the ring were used before it."""
        item = self.cut.item(self.refs, index)
        if self.cut.shape.quantized:
            self.convert_blocks(item, unit)
        else:
            self.copy_blocks(item, unit)

    def wait_until_read(self, units: Array) -> None:
        """A warpgroup that waits on a barrier has to see all of its phases, so the last release of each slot too."""
        used = jnp.minimum(units, self.cut.blocks.units)
        lax.fori_loop(0, used, lambda slot, _: plgpu.barrier_wait(self.refs.free.at[slot]), None)

    def copy_blocks(self, item: Item, unit: Array) -> None:
        """Pages in bfloat16 go straight into the ring."""

        def copy(block: Array, which: int, slot: Array) -> None:
            self.copy_pages(item, block, which, self.refs.ring.at[slot], self.refs.ready.at[slot])

        def one(block: Array, unit: Array) -> Array:
            beyond = (block + 1) * self.cut.blocks.keys > item.length
            copy(block, 0, self.freed_slot(unit))
            slot = self.freed_slot(unit + 1)
            pl.when(jnp.logical_not(beyond))(lambda: copy(block, 1, slot))
            pl.when(beyond)(lambda: self.copy_last_values(item, block, slot))
            return unit + 2

        lax.fori_loop(item.begin, item.end, one, unit)

    def freed_slot(self, unit: Array) -> Array:
        slot = lax.rem(unit, self.cut.blocks.units)
        pl.when(unit >= self.cut.blocks.units)(lambda: plgpu.barrier_wait(self.refs.free.at[slot]))
        return slot

    def copy_pages(self, item: Item, block: Array, which: Array | int, to: Ref, barrier: Ref) -> None:
        """Starts the copies of one block's keys (which = 0) or values (1), each of which arrives at the barrier."""
        refs, fetched, row = self.refs, self.cut.fetched, 2 * item.kv_head + which

        def copy(part: Array, _: None) -> None:
            offset = part * fetched
            page, rows = self.place_of(item, block, offset, fetched)
            source = refs.ins["values"].at[page, refs.ins["layer"][0], rows, row]
            plgpu.copy_gmem_to_smem(source, to.at[pl.ds(offset, fetched)], barrier)

        lax.fori_loop(0, self.cut.fetches, copy, None)

    def place_of(self, item: Item, block: Array, offset: Array | int, count: int) -> tuple[Array, Any]:
        """The page and the rows in it of `count` positions of a block; past the sequence its last page stands in."""
        page_size, position = self.cut.shape.page_size, block * self.cut.blocks.keys + offset
        column = jnp.minimum(lax.div(position, page_size), lax.div(item.length - 1, page_size))
        page = self.refs.ins["table"][item.sequence, column]
        return page, pl.ds(0 if count == page_size else lax.rem(position, page_size), count)

    def copy_last_values(self, item: Item, block: Array, slot: Array) -> None:
        """A page's unwritten rows may hold NaN, and a weight of 0 would not keep it out of a sum: they become 0."""
        ring = self.refs.ring.at[slot]
        self.copy_pages(item, block, 1, ring, self.refs.landed.at[0])
        plgpu.barrier_wait(self.refs.landed.at[0])
        for begin in range(0, self.cut.blocks.keys, TILE):
            for columns in self.columns():
                part = ring.at[pl.ds(begin, TILE), columns]
                values = load(part, plgpu.Layout.WGMMA)
                part[...] = self.written(values, item, block, begin)
        plgpu.commit_smem()
        for _ in range(self.cut.fetches):
            plgpu.barrier_arrive(self.refs.ready.at[slot])

    def columns(self) -> list[Any]:
        """The columns of a unit that go through the warpgroup's few registers at once."""
        width = tile_columns(self.cut.shape.head_dim)
        return [pl.ds(column, width) for column in range(0, self.cut.shape.head_dim, width)]

    def written(self, values: Array, item: Item, block: Array, begin: int) -> Array:
        row = plgpu.broadcasted_iota(jnp.int32, values.shape, 0, layout=plgpu.Layout.WGMMA)
        return jnp.where(row < item.length - block * self.cut.blocks.keys - begin, values, jnp.zeros_like(values))

    def convert_blocks(self, item: Item, unit: Array) -> None:
        """Pages in 8 bits land in the raw ring, ahead of their conversion into the ring of bfloat16."""
        units, ahead = 2 * (item.end - item.begin), self.cut.blocks.raw_units

        def start(index: Array) -> None:
            slot, block = lax.rem(index, ahead), item.begin + lax.div(index, 2)
            self.copy_pages(item, block, lax.rem(index, 2), self.refs.raw.at[slot], self.refs.landed.at[slot])

        lax.fori_loop(0, jnp.minimum(ahead, units), lambda index, _: start(index), None)

        def one(index: Array, _: None) -> None:
            self.convert_unit(item, index, self.freed_slot(unit + index))
            pl.when(index + ahead < units)(lambda: start(index + ahead))

        lax.fori_loop(0, units, one, None)

    def convert_unit(self, item: Item, index: Array, slot: Array) -> None:
        refs, layout = self.refs, plgpu.Layout.WGMMA
        raw_slot, block = lax.rem(index, self.cut.blocks.raw_units), item.begin + lax.div(index, 2)
        row = 2 * item.kv_head + lax.rem(index, 2)
        for begin in range(0, self.cut.blocks.keys, TILE):
            page, rows = self.place_of(item, block, begin, TILE)
            scales = refs.ins["scales"].at[page, refs.ins["layer"][0], rows, row]
            scale = load(scales, layout.reduce(1), optimized=False)
            if begin == 0:
                plgpu.barrier_wait(refs.landed.at[raw_slot])
            for columns in self.columns():
                part = pl.ds(begin, TILE), columns
                raw = load(refs.raw.at[raw_slot].at[part], layout, optimized=False)
                values = raw.astype(jnp.float32) * lax.broadcast_in_dim(scale, raw.shape, [0])
                values = self.written(values.astype(jnp.bfloat16), item, block, begin)
                refs.ring.at[slot][part] = values
        plgpu.commit_smem()
        plgpu.barrier_arrive(refs.ready.at[slot])
