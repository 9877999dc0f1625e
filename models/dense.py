"""Causal attention over whole sequences of one length, without a cache: for training and for tests."""

import jax
import jax.numpy as jnp
from jax import Array

from models.interface import Attend, Cache
from pallas_kernels.ragged import AttentionOptions


def dense_attend(batch: int, length: int) -> Attend:
    """Attention for `batch` sequences of `length` tokens that lie flat, [batch * length]; the cache passes through.

    Scores are float32 and whole: [batch, H, length, length] of them in memory.
    """

    def attend(
        cache: Cache, layer: Array | int, q: Array, k: Array, v: Array, options: AttentionOptions
    ) -> tuple[Cache, Array]:
        k, v = (x.reshape(batch, length, -1, x.shape[-1]) for x in (k, v))
        rows = q.reshape(batch, length, k.shape[2], -1, q.shape[-1])
        scores = jnp.einsum("btkgc,bskc->bkgts", rows, k, preferred_element_type=jnp.float32) * options.scale
        if options.soft_cap is not None:
            scores = options.soft_cap * jnp.tanh(scores / options.soft_cap)
        position = jnp.arange(length)
        visible = position <= position[:, None]
        if options.window is not None:
            visible &= position > position[:, None] - options.window
        weights = jax.nn.softmax(jnp.where(visible, scores, -jnp.inf), axis=-1).astype(v.dtype)
        out = jnp.einsum("bkgts,bskc->btkgc", weights, v, preferred_element_type=jnp.float32)
        return cache, out.reshape(q.shape).astype(q.dtype)

    return attend
