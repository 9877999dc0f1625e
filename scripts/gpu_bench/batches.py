"""Ragged batches over pages in random order, and a pool for them."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.dispatch import attention_body
from pallas_kernels.ragged import Pool, PoolSpec, RaggedBatch
from scripts.gpu_bench.scale import Scale


def ragged_batch(lengths: Sequence[int], news: Sequence[int], *, pages: int, page_size: int, width: int) -> RaggedBatch:
    """Sequences of `lengths` positions, the last `news` of which are this step's tokens; those with one come first.

    Pages are taken in random order, and again from the start when all are taken: nobody reads what was written.
    """
    order = np.random.default_rng(0).permutation(pages)
    needed = [-(-length // page_size) for length in lengths]
    begins = np.concatenate([[0], np.cumsum(needed)])
    table = np.zeros((len(lengths), width), np.int32)
    for row, count in enumerate(needed):
        table[row, :count] = order[(begins[row] + np.arange(count)) % pages]
    positions = [np.arange(length - new, length) for length, new in zip(lengths, news, strict=True)]
    arrays: dict[str, Any] = {
        "page_table": table,
        "kv_lens": np.array(lengths),
        "cu_q_lens": np.concatenate([[0], np.cumsum(news)]),
        "num_decode": np.array(sum(new == 1 for new in news)),
        "num_seqs": np.array(len(lengths)),
        "positions": np.concatenate(positions),
        "sequence_ids": np.repeat(np.arange(len(lengths)), news),
    }
    return RaggedBatch(**{name: jnp.asarray(value, jnp.int32) for name, value in arrays.items()})


def filled_pool(scale: Scale, pages: int, layers: int, kv_heads: int, dtype: str) -> Pool:
    """A pool of random numbers, the same in every few pages: constants would cost the device less power."""
    spec = PoolSpec(pages, layers, scale.page_size, kv_heads, scale.head_dim, jnp.dtype(dtype))
    return jax.tree.map(filled, attention_body(scale.body).pool(spec))


def filled(leaf: jax.ShapeDtypeStruct) -> jax.Array:
    """Random numbers of that shape, made from a block of 4096 a row: no temporary as large as the result."""
    block = np.random.default_rng(0).standard_normal(4096).astype(np.float32) * 0.02
    size = int(np.prod(leaf.shape))

    def make() -> jax.Array:
        small = jnp.asarray(block * (1000 if leaf.dtype == jnp.int8 else 1)).astype(leaf.dtype)
        repeats = -(-size // small.size)
        return jnp.broadcast_to(small, (repeats, small.size)).reshape(-1)[:size].reshape(leaf.shape)

    return jax.jit(make)()
