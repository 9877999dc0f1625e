"""How one decode call is cut: rows into units, keys into blocks, shared memory into buffers. Plain Python and jnp."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import Array
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.gpu.hopper import SHARED_MEMORY, STREAMING_MULTIPROCESSORS, WGMMA_M
from pallas_kernels.gpu.page_tiles import tiled
from pallas_kernels.gpu.paged_shape import PagedShape
from pallas_kernels.ragged import AttentionOptions, Pool

MOST_ROWS = 32  # query rows of one unit; more of one KV head are several units
SHARED_MEMORY_OF_A_CTA = 1024  # that the runtime takes
QUERY_BUFFERS = 2  # the next piece's queries load while this one's are in use
MOST_STAGES = 6


@dataclass(frozen=True)
class DecodeBlocks:
    """How the kernel is cut. Found by a tuner, or derived by `DecodeCut.of`."""

    keys: int  # of one step: the M of the first product, 64 or 128
    stages: int  # steps whose keys and values may be on their way at once
    ctas: int  # of the whole chip, all of them resident


@dataclass(frozen=True)
class DecodeCut:
    """The static facts of one compiled kernel."""

    blocks: DecodeBlocks
    shape: PagedShape
    options: AttentionOptions
    dtype: jnp.dtype  # of the queries and of both products' operands

    @staticmethod
    def of(
        q: tuple[int, ...], dtype: Any, pool: Pool, options: AttentionOptions, blocks: DecodeBlocks | None = None
    ) -> DecodeCut:
        """For q of shape [S', H, C]; blocks that are None are derived, or ValueError says that none fit."""
        unsized = DecodeCut(DecodeBlocks(WGMMA_M, 1, 1), PagedShape.of(q, pool), options, jnp.dtype(dtype))
        return dataclasses.replace(unsized, blocks=blocks or unsized.derived_blocks())

    @property
    def tiles(self) -> int:
        """Units of one KV head."""
        return -(-self.shape.group // MOST_ROWS)

    @property
    def rows(self) -> int:
        """Query rows of a unit, a multiple of 8."""
        return -(-self.shape.group // self.tiles // 8) * 8

    @property
    def units(self) -> int:
        """Units of one sequence."""
        return self.shape.kv_heads * self.tiles

    @property
    def parts(self) -> tuple[slice, ...]:
        """The columns of a value, as the second products take them: whole multiples of 64, the M of a wgmma.

        A head size that is none has two parts that overlap."""
        head_dim = self.shape.head_dim
        if head_dim % WGMMA_M == 0:
            return (slice(0, head_dim),)
        return slice(0, WGMMA_M), slice(head_dim - WGMMA_M, head_dim)

    @property
    def values(self) -> int:
        """Output rows of all parts."""
        return sum(part.stop - part.start for part in self.parts)

    @property
    def copies(self) -> int:
        """Pages, or parts of one, that fill a block of keys."""
        return max(1, self.blocks.keys // self.shape.page_size)

    @property
    def copied_keys(self) -> int:
        return min(self.blocks.keys, self.shape.page_size)

    @property
    def shared_memory(self) -> int:
        """Bytes of one CTA, without barriers."""
        keys, head_dim = self.blocks.keys, self.shape.head_dim
        stage = keys * 2 * head_dim * self.shape.page_dtype.itemsize
        other = QUERY_BUFFERS * self.rows * head_dim * 2 + self.rows * keys * 2
        if self.shape.quantized:
            other += keys * head_dim * 2
        return self.blocks.stages * stage + other + self.reduction_scratch

    @property
    def reduction_scratch(self) -> int:
        """Bytes through which the warps of a warpgroup find the greatest score of a row."""
        return 128 * self.rows

    def derived_blocks(self) -> DecodeBlocks:
        """Two CTAs on an SM, so that one computes while the other waits, where both can have two stages on their way
        and ptxas is known to need no more than the 128 registers of a thread that each of them has then."""
        head_dim, quantized = self.shape.head_dim, self.shape.quantized
        keys = 128 if head_dim == 64 and not quantized else 64
        few_registers = head_dim * self.rows <= 128 * 16 and not (quantized and head_dim > 128)
        for ctas_of_an_sm in (2, 1) if few_registers else (1,):
            room = SHARED_MEMORY // ctas_of_an_sm - SHARED_MEMORY_OF_A_CTA

            def needed(stages: int, ctas: int = ctas_of_an_sm * STREAMING_MULTIPROCESSORS) -> int:
                return dataclasses.replace(self, blocks=DecodeBlocks(keys, stages, ctas)).shared_memory

            stages = (room - needed(0)) // (needed(1) - needed(0))
            if stages >= 2:
                return DecodeBlocks(keys, min(stages, MOST_STAGES), ctas_of_an_sm * STREAMING_MULTIPROCESSORS)
        raise ValueError(f"no two stages of {keys} keys of head size {head_dim} fit in shared memory")

    def rows_of(self, per_head: Array) -> Array:
        """[S, H, C] as [S, units, N, C], with zeros for the rows that fill up a unit."""
        sequences, _, width = per_head.shape
        group = self.shape.group
        grouped = per_head.reshape(sequences, self.shape.kv_heads, group, width)
        padded = jnp.pad(grouped, ((0, 0), (0, 0), (0, self.tiles * self.rows - group), (0, 0)))
        return padded.reshape(sequences, self.units, self.rows, width)

    def heads_of(self, merged: Array) -> Array:
        """[S, units, V, N] as [S, H, C]: the way back from `rows_of`."""
        shape, sequences = self.shape, merged.shape[0]
        last = self.parts[-1].stop - self.parts[-1].start
        spare = self.values - shape.head_dim  # rows of the last part that the part before it has too
        merged = jnp.concatenate([merged[:, :, : self.values - last], merged[:, :, self.values - last + spare :]], 2)
        by_row = merged.swapaxes(2, 3).reshape(sequences, shape.kv_heads, self.tiles * self.rows, shape.head_dim)
        return by_row[:, :, : shape.group].reshape(sequences, shape.heads, shape.head_dim)

    def scratch(self) -> dict[str, Any]:
        """The memory of one CTA, as `decode_pieces.Shared` names it."""
        keys, stages, head_dim = self.blocks.keys, self.blocks.stages, self.shape.head_dim
        wide, packed = tiled(head_dim, self.dtype), tiled(head_dim, self.shape.page_dtype)
        scratch: dict[str, Any] = {
            "queries": plgpu.SMEM((QUERY_BUFFERS, self.rows, head_dim), self.dtype, transforms=wide),
            "keys": plgpu.SMEM((stages, keys, head_dim), self.shape.page_dtype, transforms=packed),
            "values": plgpu.SMEM((stages, keys, head_dim), self.shape.page_dtype, transforms=packed),
            "weights": plgpu.SMEM((self.rows, keys), self.dtype, transforms=wide),
            "queries_ready": plgpu.Barrier(num_barriers=QUERY_BUFFERS),
            "queries_free": plgpu.Barrier(num_barriers=QUERY_BUFFERS),
            "keys_ready": plgpu.Barrier(num_arrivals=self.copies, num_barriers=stages),
            "keys_free": plgpu.Barrier(num_barriers=stages),
            "values_ready": plgpu.Barrier(num_arrivals=self.copies, num_barriers=stages),
            "values_free": plgpu.Barrier(num_barriers=stages),
        }
        if self.shape.quantized:
            scratch["wide"] = plgpu.SMEM((keys, head_dim), self.dtype, transforms=wide)
        return scratch
