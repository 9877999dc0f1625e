"""The online softmax (Milakov and Gimelshein, arXiv 1805.02867) over blocks of keys, accumulated in float32."""

import jax.numpy as jnp
from jax import Array, lax

from pallas_kernels.ragged import AttentionOptions

NEGATIVE = -1e30  # finite: a row with nothing to see stays free of NaN

Carry = tuple[Array, Array, Array]  # running maximum [B, K, N], running sum [B, K, N], running output [B, K, N, V]


def begin(rows: Array, value_dim: int, sinks: Array | None, repeat: int = 1) -> Carry:
    """Before any key: rows is [B, K, N, C]. A sink is a key that was seen and has no value."""
    shape = rows.shape[:3]
    output = jnp.zeros((*shape, value_dim), jnp.float32)
    if sinks is None:
        return jnp.full(shape, NEGATIVE, jnp.float32), jnp.zeros(shape, jnp.float32), output
    sink = jnp.tile(sinks.astype(jnp.float32).reshape(shape[1], -1), (1, repeat))
    maximum = jnp.broadcast_to(sink[None], shape)
    return maximum, jnp.ones_like(maximum), output


def add_block(
    carry: Carry,
    rows: Array,  # [B, K, N, C] queries
    keys_values: Array,  # [B, size, 2K, C]; latent: [B, size, 1, C]
    first_key: Array,  # [] position of the block's first key
    position: Array,  # [B, N] of each query row, or [B, 1] where all have one
    options: AttentionOptions,
    window: Array | int | None,
) -> Carry:
    """`size` more keys of each of the B sequences."""
    maximum, total, output = carry
    keys, values = _split(keys_values.astype(rows.dtype), options)
    scores = jnp.einsum("bknc,bksc->bkns", rows, keys, preferred_element_type=jnp.float32) * options.scale
    if options.soft_cap is not None:
        scores = options.soft_cap * jnp.tanh(scores / options.soft_cap)
    key_position = first_key + jnp.arange(keys.shape[2])
    visible = key_position <= position[..., None]  # [B, N or 1, size]
    if window is not None:
        visible &= key_position >= first_visible(position, window, options)[..., None]
    scores = jnp.where(visible[:, None], scores, NEGATIVE)
    # A page may hold an earlier owner's numbers, and 0 * NaN is NaN: nothing of theirs may reach this sequence.
    written = key_position <= position.max(axis=-1, keepdims=True)  # [B, size]
    values = jnp.where(written[:, None, :, None], values, 0)
    new_maximum = jnp.maximum(maximum, scores.max(axis=-1))
    weights = jnp.where(visible[:, None], jnp.exp(scores - new_maximum[..., None]), 0.0)
    shrink = jnp.exp(maximum - new_maximum)
    added = jnp.einsum("bkns,bksv->bknv", weights.astype(values.dtype), values, preferred_element_type=jnp.float32)
    return new_maximum, total * shrink + weights.sum(axis=-1), output * shrink[..., None] + added


def finish(carry: Carry) -> Array:
    """[B, K, N, V]; a row that saw no key is zero."""
    _, total, output = carry
    return output / jnp.maximum(total, 1e-30)[..., None]


def first_visible(position: Array, window: Array | int, options: AttentionOptions) -> Array:
    """The first position that a query at `position` sees; it may be negative."""
    return position // window * window if options.chunked else position - window + 1


def _split(keys_values: Array, options: AttentionOptions) -> tuple[Array, Array]:
    """[B, size, 2K, C] -> keys [B, K, size, C] and values [B, K, size, C or value_dim].

    Behind the barrier the transpose is a matter of strides, which a CPU's products take as they are. Without it XLA
    writes keys and values out anew, and all of decode's attention takes a quarter longer.
    """
    heads = lax.optimization_barrier(keys_values.transpose(0, 2, 1, 3))
    if options.value_dim is not None:
        return heads, heads[..., : options.value_dim]
    batch, num_rows, size, head_dim = heads.shape
    pairs = heads.reshape(batch, num_rows // 2, 2, size, head_dim)
    return pairs[:, :, 0], pairs[:, :, 1]
