"""Inside a kernel: pages on their way from HBM through a ring of VMEM buffers.

    table (SMEM) -> page numbers        pool (HBM)  [pages, L, page_size, W]
                                          |  one copy a page, by [page, layer]
                                          v
    buffer (VMEM) [buffers, pages_per_block, page_size, W]     block i lies in buffer i % buffers

What a buffer holds beyond the pages that were copied, and beyond a sequence's last position, is whatever was there
before: another sequence's numbers, perhaps NaN. A weight of zero does not silence a NaN, so those rows are zeroed.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.tpu.pool_layout import rows_per_tile

Ref = Any  # Pallas has no public type for a reference that a checker would understand


class Pages(NamedTuple):
    """The pool, or a buffer of it; scales only with 8-bit pages. A pytree: kernels take it as one operand."""

    values: Any
    scales: Any = None


class Span(NamedTuple):
    """What some queries of one sequence may see: positions begin .. end-1."""

    sequence: Array
    begin: Array
    end: Array


@dataclass(frozen=True)
class PageRing:
    pool: Pages  # in HBM: values [pages, L, page_size, W], scales [pages, L, 2K, N]
    buffer: Pages  # in VMEM: values [buffers, pages_per_block, page_size, W], scales [.., 2K, N]
    arrived: Ref  # [buffers] DMA semaphores
    table: Ref  # [S * table_width] in SMEM
    table_width: int
    layer: Array

    @property
    def buffers(self) -> int:
        return self.buffer.values.shape[0]

    @property
    def pages_per_block(self) -> int:
        return self.buffer.values.shape[1]

    @property
    def page_size(self) -> int:
        return self.buffer.values.shape[2]

    @property
    def block_size(self) -> int:
        return self.pages_per_block * self.page_size

    def blocks(self, span: Span) -> tuple[Array, Array]:
        """The blocks that hold the span: first and end. There is one at least, so that an empty span has its turn."""
        first = div(span.begin, self.block_size)
        return first, jnp.maximum(div(span.end + self.block_size - 1, self.block_size), first + 1)

    def start(self, span: Span, block: Array, slot: Array) -> None:
        self._each_copy(span, block, slot, lambda copy: copy.start())

    def wait(self, span: Span, block: Array, slot: Array) -> None:
        self._each_copy(span, block, slot, lambda copy: copy.wait())

    def clear_outside(self, span: Span, block: Array, slot: Array) -> None:
        """Zeroes the block's values before the span's first page and after its last position."""
        values, size = self.buffer.values, self.page_size
        strip = rows_per_tile(values.dtype)
        strips = size // strip

        def clear(i: Array, _: None) -> None:
            rows = pl.ds(pl.multiple_of(lax.rem(i, strips) * strip, strip), strip)
            values[slot, div(i, strips), rows, :] = jnp.zeros((strip, values.shape[3]), values.dtype)

        pages_before = div(span.begin, size) - block * self.pages_per_block
        lax.fori_loop(0, jnp.maximum(pages_before, 0) * strips, clear, None)
        end = span.end - block * self.block_size

        @pl.when(end < self.block_size)
        def _() -> None:
            whole = div(end, strip)
            cut = lax.rem(end, strip)

            @pl.when(cut > 0)
            def _() -> None:
                rows = pl.ds(pl.multiple_of(lax.rem(whole, strips) * strip, strip), strip)
                at = (slot, div(whole, strips), rows, slice(None))
                values[at] = keep_rows(values[at], lambda row: row < cut)

            lax.fori_loop(div(end + strip - 1, strip), self.pages_per_block * strips, clear, None)

    def _each_copy(self, span: Span, block: Array, slot: Array, act: Any) -> None:
        first = jnp.maximum(block * self.pages_per_block, div(span.begin, self.page_size))
        end = jnp.minimum((block + 1) * self.pages_per_block, div(span.end + self.page_size - 1, self.page_size))

        def one(place: Array, _: None) -> None:
            page = self.table[span.sequence * self.table_width + place]
            to = place - block * self.pages_per_block
            for pool, buffer in zip(self.pool, self.buffer, strict=True):
                if pool is not None:
                    act(pltpu.make_async_copy(pool.at[page, self.layer], buffer.at[slot, to], self.arrived.at[slot]))

        lax.fori_loop(first, end, one, None)


def keep_rows(rows: Array, kept: Any, otherwise: Array | None = None) -> Array:
    """Rows [N, W] where kept(row number) holds, elsewhere `otherwise` or zeros.

    The selection is in 32 bits: not every TPU can select in 16 or 8.
    """
    row = lax.broadcasted_iota(jnp.int32, rows.shape, 0)
    other = jnp.zeros(rows.shape, jnp.float32) if otherwise is None else otherwise.astype(jnp.float32)
    return jnp.where(kept(row), rows.astype(jnp.float32), other).astype(rows.dtype)


def div(a: Array, b: Array | int) -> Array:
    """Of numbers that are not negative: without the fix of the sign that // adds."""
    return lax.div(a, jnp.int32(b))
