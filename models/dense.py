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
        cache: Cache,
        layer: Array | int,
        q: Array,
        k: Array,
        v: Array | None,
        options: AttentionOptions,
        *,
        sinks: Array | None = None,
        window: Array | int | None = None,
    ) -> tuple[Cache, Array]:
        v = k[..., : options.value_dim] if v is None else v
        k, v = (x.reshape(batch, length, -1, x.shape[-1]) for x in (k, v))
        rows = q.reshape(batch, length, k.shape[2], -1, q.shape[-1])
        scores = jnp.einsum("btkgc,bskc->bkgts", rows, k, preferred_element_type=jnp.float32) * options.scale
        if options.soft_cap is not None:
            scores = options.soft_cap * jnp.tanh(scores / options.soft_cap)
        scores = jnp.where(_visible(length, window, options.chunked), scores, -jnp.inf)
        if sinks is not None:
            sink = sinks.astype(jnp.float32).reshape(1, *scores.shape[1:3], 1, 1)
            scores = jnp.concatenate([scores, jnp.broadcast_to(sink, (*scores.shape[:-1], 1))], axis=-1)
        weights = jax.nn.softmax(scores, axis=-1)[..., :length].astype(v.dtype)
        out = jnp.einsum("bkgts,bskc->btkgc", weights, v, preferred_element_type=jnp.float32)
        return cache, out.reshape(*q.shape[:2], -1).astype(q.dtype)

    return attend


def _visible(length: int, window: Array | int | None, chunked: bool) -> Array:
    """[query, key]: what a position sees."""
    position = jnp.arange(length)
    visible = position <= position[:, None]
    if window is None:
        return visible
    if chunked:
        return visible & (position >= (position // window * window)[:, None])
    return visible & (position > position[:, None] - window)
