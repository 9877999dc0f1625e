"""Numbers in 8 bits with a scale for each row: how every body writes quantized pages, and reads them back."""

import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

PAGE_DTYPES = ("int8", "float8_e4m3fn")


def largest(dtype: DTypeLike) -> float:
    """The largest finite number of a type in 8 bits."""
    dtype = jnp.dtype(dtype)
    return float(jnp.iinfo(dtype).max if jnp.issubdtype(dtype, jnp.integer) else jnp.finfo(dtype).max)


def quantize(rows: Array, dtype: DTypeLike) -> tuple[Array, Array]:
    """rows [..., C] -> (values [..., C] of that type, scales [...] float32): rows is about values * scales.

    The scale puts the row's largest magnitude at the type's largest number; a row of zeros has scale 1.
    """
    rows, limit = rows.astype(jnp.float32), largest(dtype)
    reach = jnp.max(jnp.abs(rows), axis=-1)
    scales = jnp.where(reach > 0, reach / limit, 1.0)
    values = jnp.clip(rows / scales[..., None], -limit, limit)
    if jnp.issubdtype(jnp.dtype(dtype), jnp.integer):
        values = jnp.round(values)
    return values.astype(dtype), scales


def dequantize(values: Array, scales: Array) -> Array:
    """values [..., C], scales [...] -> float32."""
    return values.astype(jnp.float32) * scales[..., None]
