"""A pool of pages in numpy, filled with poison, in the contract's own layout and any of its types."""

import jax.numpy as jnp
import numpy as np

from pallas_kernels.quantization import PAGE_DTYPES, largest
from pallas_kernels.ragged import Pool, PoolSpec, QuantizedPages

LAYER = 1  # the one that holds anything


class KeptPages:
    """What the pool should hold: rows [n, 2K or 1, C] at slots (page, row of the page)."""

    def __init__(self, spec: PoolSpec) -> None:
        self.dtype = jnp.dtype(spec.dtype)
        self.quantized = self.dtype.name in PAGE_DTYPES
        shape = (spec.pages, spec.layers, spec.page_size, 1 if spec.latent else 2 * spec.kv_heads, spec.head_dim)
        self.values = np.full(shape, 77 if self.dtype == np.int8 else np.nan, self.dtype)
        self.scales = np.full(shape[:-1], np.nan, np.float32)

    def write(self, slots: list[tuple[int, int]], rows: np.ndarray) -> None:
        pages, places = np.array(slots, np.intp).reshape(-1, 2).T
        rows = rows[: len(slots)]
        if self.quantized:
            limit = np.float32(largest(self.dtype))
            scales = np.abs(rows).max(axis=-1).astype(np.float32) / limit
            self.scales[pages, LAYER, places] = scales
            rows = np.clip(rows.astype(np.float32) / scales[..., None], -limit, limit)
            rows = np.round(rows) if self.dtype == np.int8 else rows
        self.values[pages, LAYER, places] = rows.astype(self.dtype)

    def read(self, slots: list[tuple[int, int]]) -> np.ndarray:
        """[n, 2K or 1, C] float64, dequantized."""
        pages, places = np.array(slots, np.intp).reshape(-1, 2).T
        values = self.values[pages, LAYER, places].astype(np.float64)
        return values * self.scales[pages, LAYER, places][..., None] if self.quantized else values

    def on_device(self) -> Pool:
        values = jnp.asarray(self.values)
        return QuantizedPages(values, jnp.asarray(self.scales)) if self.quantized else values

    def agree_with(self, pool: Pool) -> None:
        """Asserts that the device holds the same, and goes on with the device's numbers.

        A quantized number may be the next one where the two divisions round to different sides of a half.
        """
        values, scales = (pool.values, pool.scales) if isinstance(pool, QuantizedPages) else (pool, None)
        theirs, ours = np.asarray(values, np.float32), self.values.astype(np.float32)
        if scales is None:
            np.testing.assert_array_equal(theirs, ours)
            return
        with np.errstate(invalid="ignore"):
            differ = (theirs != ours) & ~(np.isnan(theirs) & np.isnan(ours))
        assert differ.mean() < 1e-4
        np.testing.assert_allclose(theirs[differ], ours[differ], atol=1.0, rtol=0.125)
        np.testing.assert_allclose(np.asarray(scales), self.scales, rtol=1e-6)
        self.values, self.scales = np.asarray(values), np.asarray(scales)
