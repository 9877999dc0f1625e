"""How one prefill step is cut: into blocks of keys, tiles of rows, and a list of work items. Plain Python and jnp.

A tile's rows are tokens, or tokens times query heads of one KV head (`BlockSizes.heads`): row r of a sequence is then
head r % heads of token r // heads. Positions are compared without a division, as key <= r // heads means
key * heads <= r for whole numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import Array

from pallas_kernels.gpu.hopper import SHARED_MEMORY, STREAMING_MULTIPROCESSORS, WGMMA_M
from pallas_kernels.gpu.paged_shape import PagedShape
from pallas_kernels.gpu.softmax import LOG2_E
from pallas_kernels.ragged import Pool, RaggedBatch

TILE = WGMMA_M  # rows of one warpgroup
ATTENDING = 2  # warpgroups that attend
ROWS = ATTENDING * TILE  # rows of one work item
BARRIERS = 1_024  # bytes of shared memory, kept for barriers and alignment

# The columns of the work list.
SEQUENCE, ROW, COUNT, SCALED, BEGIN, END, LENGTH, FIELDS = *range(7), 8


@dataclass(frozen=True)
class BlockSizes:
    """How a kernel call is cut. The derived ones fit shared memory; others may be faster."""

    heads: int  # query heads that share a tile: 1, or a divisor of the heads of a KV head
    keys: int  # keys of one block: one step of the online softmax
    units: int  # slots of the ring; a slot holds K or V of one block
    raw_units: int = 0  # slots of the ring that 8-bit pages land in
    attending_registers: int = 232  # of a thread; multiples of 8
    fetching_registers: int = 40
    programs: int = STREAMING_MULTIPROCESSORS

    @staticmethod
    def derived(q: tuple[int, ...], pool: Pool, sequences: int) -> BlockSizes:
        """For q of shape [T, H, C]."""
        tokens, head_dim, shape = q[0], q[2], PagedShape.of(q, pool)
        # Folding heads fills the tiles of short chunks, and costs a transposition of q and of the output.
        folded = shape.kv_heads == 1 or tokens <= TILE // 2 * sequences
        keys = ROWS if head_dim < 128 or (head_dim == 128 and not shape.quantized) else TILE
        raw_units = 2 if shape.quantized else 0
        kept = ROWS * head_dim * 2 + ROWS * staged_columns(head_dim) * 2 + raw_units * keys * head_dim
        fetching = 104 if shape.quantized else 40  # together with the others' 504 = 3 * 168, what a program starts with
        return BlockSizes(
            heads=shape.group if folded else 1,
            keys=keys,
            units=min((SHARED_MEMORY - BARRIERS - kept) // (keys * head_dim * 2), 8),
            raw_units=raw_units,
            attending_registers=(504 - fetching) // 2,
            fetching_registers=fetching,
        )


def staged_columns(head_dim: int) -> int:
    """Of an output that ends inside a tile, what passes through plain rows at once: above 128, memory is scarce."""
    return head_dim if head_dim <= 128 else head_dim // 2


def work_list(batch: RaggedBatch, tokens: int, blocks: BlockSizes, window: Array | int | None) -> tuple[Array, Array]:
    """([W, FIELDS] int32, [1] int32): the tiles of all prefill chunks, those with most keys first, and how many.

    A tile is ROWS rows of a sequence, by: SEQUENCE; ROW, its first row in the folded batch; COUNT, its rows;
    SCALED, `heads` times the first row's position, plus that row's head; BEGIN and END, its blocks of keys;
    LENGTH, the positions of its sequence.
    """
    sequences, heads = batch.kv_lens.shape[0], blocks.heads
    row = jnp.arange(sequences)
    live = (row >= batch.num_decode) & (row < batch.num_seqs)
    rows = jnp.where(live, batch.cu_q_lens[1:] - batch.cu_q_lens[:-1], 0) * heads
    tiles = _cdiv(rows, ROWS)
    ends = jnp.cumsum(tiles)
    tile = jnp.arange(sequences + tokens * heads // ROWS)
    sequence = jnp.minimum(jnp.searchsorted(ends, tile, side="right", method="compare_all"), sequences - 1)
    offset = (tile - (ends - tiles)[sequence]) * ROWS
    count = jnp.minimum(rows[sequence] - offset, ROWS)
    length = batch.kv_lens[sequence]
    scaled = length * heads - rows[sequence] + offset
    end = _cdiv((scaled + count - 1) // heads + 1, blocks.keys)
    begin = jnp.zeros_like(end)
    if window is not None:
        begin = jnp.maximum(scaled // heads + 1 - jnp.minimum(window, length), 0) // blocks.keys
    fields = (sequence, batch.cu_q_lens[sequence] * heads + offset, count, scaled, begin, end, length, length)
    order = jnp.argsort(jnp.where(tile < ends[-1], begin - end, 1))
    return jnp.stack(fields, axis=1).astype(jnp.int32)[order], ends[-1:].astype(jnp.int32)


def folded(q: Array, heads: int) -> Array:
    """[T, H, C] as it is for one head a tile, else [H / heads, T * heads, C]; both with TILE rows at least."""
    tokens, all_heads, head_dim = q.shape
    if heads == 1:
        return jnp.pad(q, ((0, max(TILE - tokens, 0)), (0, 0), (0, 0)))
    rows = q.reshape(tokens, all_heads // heads, heads, head_dim).transpose(1, 0, 2, 3)
    rows = rows.reshape(all_heads // heads, tokens * heads, head_dim)
    return jnp.pad(rows, ((0, 0), (0, max(TILE - tokens * heads, 0)), (0, 0)))


def unfolded(out: Array, shape: tuple[int, ...], heads: int) -> Array:
    """[T, H, C], that is `shape`: the way back from `folded`."""
    tokens, all_heads, head_dim = shape
    if heads == 1:
        return out[:tokens]
    rows = out[:, : tokens * heads].reshape(all_heads // heads, tokens, heads, head_dim)
    return rows.transpose(1, 0, 2, 3).reshape(shape)


def sinks_by_phase(sinks: Array, heads: int) -> Array:
    """[H / heads, heads, TILE]: the sinks of a tile's rows, base 2, where its first row is of head 0, 1, ..."""
    head = (jnp.arange(heads)[:, None] + jnp.arange(TILE)) % heads
    return (sinks.astype(jnp.float32) * LOG2_E).reshape(-1, heads)[:, head]


def _cdiv(a: Any, b: int) -> Any:
    return (a + b - 1) // b
