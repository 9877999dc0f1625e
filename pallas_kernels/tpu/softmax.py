"""Inside a kernel: what decode and prefill share of the online softmax (Milakov and Gimelshein, arXiv 1805.02867)."""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import Array, lax
from jax.typing import DTypeLike

from pallas_kernels.ragged import AttentionOptions
from pallas_kernels.tpu.page_ring import Pages, div
from pallas_kernels.tpu.pool_layout import Lanes, RowLayout

NEGATIVE = -1e30  # the maximum of nothing; finite, so that a row with nothing to see stays free of NaN
HIDDEN = 2 * NEGATIVE  # a hidden key's score: exp(HIDDEN - NEGATIVE) is 0, so that it weighs nothing even there
SMALLEST_SUM = 1e-30


@dataclass(frozen=True)
class Heads:
    """How the query heads lie in a kernel, and what the model asks of them. Static."""

    layout: RowLayout
    options: AttentionOptions
    has_window: bool


def first_visible(position: Array, window: Array | None, options: AttentionOptions) -> Array:
    """The first position that a query at `position` (a scalar) sees."""
    if window is None:
        return jnp.zeros_like(position)
    if options.chunked:
        return div(position, window) * window
    return jnp.maximum(position - window + 1, 0)


def read(buffer: Pages, slot: Array, lanes: Lanes, dtype: DTypeLike) -> Array:
    """[block_size, width]: those lanes of a block's rows."""
    values = buffer.values[slot, :, :, lanes.of_row]
    return values.reshape(-1, lanes.width).astype(dtype)


def read_scales(buffer: Pages, slot: Array, row: int, seen: Array) -> Array | None:
    """[1, block_size]: one KV row's scales where `seen`, else 0 (a NaN may lie there). None where pages have none."""
    if buffer.scales is None:
        return None
    pages = [
        buffer.scales[slot, page, row : row + 1, : buffer.values.shape[2]] for page in range(buffer.scales.shape[1])
    ]
    return jnp.where(seen, jnp.concatenate(pages, axis=1), 0.0)


def capped(result: Array, options: AttentionOptions) -> Array:
    if options.soft_cap is None:
        return result
    return options.soft_cap * jnp.tanh(result * (1 / options.soft_cap))


def product(left: Array, right: Array, contracted: Any) -> Array:
    precision = lax.Precision.HIGHEST if left.dtype == jnp.float32 else None
    return lax.dot_general(left, right, (contracted, ((), ())), precision=precision, preferred_element_type=jnp.float32)
