"""Ragged paged attention on a CPU: the reference body, with decode over float32 pages compiled instead of left to XLA.

Prefill, what decoding sequences share, pages in 8 bits and latent pages stay the reference's: there XLA multiplies
matrices, which it does well, and its copies are read by many queries.
"""

import dataclasses

import jax.numpy as jnp
from jax import Array

from pallas_kernels.cpu.decode import attend_pages
from pallas_kernels.ragged import AttentionOptions, Pool, RaggedBatch
from pallas_kernels.reference.online_softmax import Carry
from pallas_kernels.reference.paged_attention import Attention, refusal
from pallas_kernels.reference.pages import pool_shape

__all__ = ["paged_attention", "pool_shape", "refusal"]

MOST_QUERIES = 16  # query heads of a KV head that are gone through one by one; at 16 one row is level with XLA


def paged_attention(
    q: Array,  # [T, H, C]
    k: Array,  # [T, K, C]
    v: Array | None,  # [T, K, C]; None where latent
    pool: Pool,  # [pages, L, page_size, 2K, C]; k of head i at 2i, v at 2i+1
    layer: Array | int,
    batch: RaggedBatch,
    options: AttentionOptions,
    sinks: Array | None = None,  # [H] extra logits that take weight and give no value
    window: Array | int | None = None,  # [] int32
) -> tuple[Array, Pool]:
    """Writes k and v into the pool in place (when donated), then attends. Returns ([T, H, C or value_dim], pool)."""
    return _CompiledDecode(layer, batch, options, sinks, window).step(q, k, v, pool)


@dataclasses.dataclass(frozen=True)
class _CompiledDecode(Attention):
    def own_pages(
        self, carry: Carry, rows: Array, pool: Pool, lens: Array, first: Array, shared: Array
    ) -> tuple[Carry, Pool]:
        latent, many = self.options.value_dim is not None, rows.shape[2] > MOST_QUERIES
        if not isinstance(pool, Array) or pool.dtype != jnp.float32 or latent or many:
            return super().own_pages(carry, rows, pool, lens, first, shared)
        begin = jnp.maximum(first, shared * pool.shape[2])
        queries = rows.astype(jnp.float32) * self.options.scale
        table = self.batch.page_table[: rows.shape[0]]
        return attend_pages(carry, queries, pool, self.layer, table, begin, lens, self.options.soft_cap), pool
