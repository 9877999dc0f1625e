"""What all warpgroups of the prefill kernel know: the call's static facts, the memory they share, one work item."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import Array, lax

from pallas_kernels.gpu.hopper import Ref
from pallas_kernels.gpu.page_tiles import tiled
from pallas_kernels.gpu.paged_shape import PagedShape
from pallas_kernels.gpu.prefill_schedule import ATTENDING, LENGTH, ROWS, TILE, BlockSizes, staged_columns
from pallas_kernels.ragged import AttentionOptions


@dataclass(frozen=True)
class PrefillRefs:
    q: Ref
    out: Ref
    ins: dict[str, Ref]
    queries: Ref  # [2, TILE, C] of each attending warpgroup; its output leaves from there too
    staged: Ref  # [2, TILE, columns] plain rows of an output that ends inside a tile
    ring: Ref  # [units, keys, C]
    queries_ready: Ref
    ready: Ref  # [units] the unit can be read
    free: Ref  # [units] both attending warpgroups have read it
    turn: Ref
    landed: Ref
    raw: Ref = None  # [raw_units, keys, C] in 8 bits


@dataclass(frozen=True)
class Item:
    """One work item as a program sees it: scalars read from the list."""

    sequence: Array
    row: Array
    count: Array
    scaled: Array
    begin: Array
    end: Array
    length: Array
    head: Array  # of the tile: a query head, or where heads are folded a group of them
    kv_head: Array


@dataclass(frozen=True)
class PrefillCut:
    """Everything about one call that is known when it is traced. Raises ValueError for blocks that cannot work."""

    blocks: BlockSizes
    options: AttentionOptions
    shape: PagedShape
    sunk: bool
    windowed: bool

    def __post_init__(self) -> None:
        heads, keys = self.blocks.heads, self.blocks.keys
        if self.shape.group % heads:
            raise ValueError(f"blocks.heads is {heads}: it must divide the {self.shape.group} query heads of a KV head")
        if keys % TILE or keys > ROWS:
            raise ValueError(f"blocks.keys is {keys}: it must be {TILE} or {ROWS}")

    @property
    def tile_heads(self) -> int:
        """Tiles side by side."""
        return self.shape.heads // self.blocks.heads

    @property
    def fetches(self) -> int:
        """TMA copies that fill one unit."""
        return max(1, self.blocks.keys // self.shape.page_size)

    @property
    def fetched(self) -> int:
        """Positions that one copy brings."""
        return min(self.blocks.keys, self.shape.page_size)

    def item(self, refs: PrefillRefs, index: Array) -> Item:
        tile, head = lax.div(index, self.tile_heads), lax.rem(index, self.tile_heads)
        fields = [refs.ins["items"][tile, field] for field in range(LENGTH + 1)]
        return Item(*fields, head=head, kv_head=lax.div(head, self.shape.group // self.blocks.heads))

    def scratch(self) -> dict[str, Any]:
        """The memory of one program, as `PrefillRefs` names it."""
        blocks, head_dim, bfloat16 = self.blocks, self.shape.head_dim, jnp.dtype(jnp.bfloat16)
        quantized, wide = self.shape.quantized, tiled(head_dim, bfloat16)
        types = {
            "queries": plgpu.SMEM((ATTENDING, TILE, head_dim), bfloat16, transforms=wide),
            "staged": plgpu.SMEM((ATTENDING, TILE, staged_columns(head_dim)), bfloat16),
            "ring": plgpu.SMEM((blocks.units, blocks.keys, head_dim), bfloat16, transforms=wide),
            "queries_ready": plgpu.Barrier(num_barriers=ATTENDING),
            "ready": plgpu.Barrier(num_arrivals=1 if quantized else self.fetches, num_barriers=blocks.units),
            "free": plgpu.Barrier(num_arrivals=ATTENDING, num_barriers=blocks.units),
            "turn": plgpu.Barrier(num_arrivals=ATTENDING),
            "landed": plgpu.Barrier(num_arrivals=self.fetches, num_barriers=max(blocks.raw_units, 1)),
        }
        if quantized:
            raw = (blocks.raw_units, blocks.keys, head_dim)
            types["raw"] = plgpu.SMEM(raw, self.shape.page_dtype, transforms=tiled(head_dim, self.shape.page_dtype))
        return types
