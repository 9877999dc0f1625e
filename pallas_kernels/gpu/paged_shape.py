"""What a kernel over pages is asked to serve, read off its operands, and what no kernel here serves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from pallas_kernels.gpu.hopper import WGMMA_M
from pallas_kernels.ragged import AttentionOptions, Pool, QuantizedPages

HEAD_DIMS = (64, 80, 96, 128, 192, 256)
PAGE_SIZES = (16, 32, 64, 128, 256)


@dataclass(frozen=True)
class PagedShape:
    """Of one call on one device."""

    heads: int  # H
    kv_heads: int  # K
    head_dim: int  # C
    page_size: int
    page_dtype: jnp.dtype

    @staticmethod
    def of(q: tuple[int, ...], pool: Pool) -> PagedShape:
        """For q of shape [T, H, C]."""
        pages = pages_of(pool)
        return PagedShape(q[1], pages.shape[3] // 2, q[2], pages.shape[2], jnp.dtype(pages.dtype))

    @property
    def group(self) -> int:
        """Query heads that share a KV head."""
        return self.heads // self.kv_heads

    @property
    def quantized(self) -> bool:
        return self.page_dtype.itemsize == 1

    def refusal(self, kernel: str, options: AttentionOptions, page_dtypes: Sequence[jnp.dtype]) -> str | None:
        """Why `kernel` cannot serve it, as a sentence; None where it can, as far as all of them are alike."""
        if options.value_dim is not None:
            return f"the GPU {kernel} kernel keeps K and V in rows of their own: value_dim is for the reference body"
        if self.page_dtype not in page_dtypes:
            names = ", ".join(dtype.name for dtype in page_dtypes)
            return f"the GPU {kernel} kernel takes pages of {names}, not {self.page_dtype.name}"
        if self.head_dim not in HEAD_DIMS:
            return f"the GPU {kernel} kernel takes head sizes {HEAD_DIMS}, not {self.head_dim}"
        if self.page_size not in PAGE_SIZES:
            return f"the GPU {kernel} kernel takes pages of {PAGE_SIZES} positions, not {self.page_size}"
        if self.kv_heads < 1 or self.heads % self.kv_heads:
            return f"{self.heads} query heads do not share {self.kv_heads} KV heads evenly"
        if self.quantized and self.page_size < WGMMA_M:
            return f"the GPU {kernel} kernel takes 8-bit pages of {WGMMA_M} positions or more, not {self.page_size}"
        return None


def pages_of(pool: Pool) -> Any:
    """The pool's numbers, [pages, L, page_size, 2K, C], without their scales."""
    return pool.values if isinstance(pool, QuantizedPages) else pool
