"""Numbers in 8 or 4 bits with scales: how every body writes quantized pages and reads them, and how weights lie."""

from typing import Literal

import jax.numpy as jnp
from jax import Array, lax
from jax.typing import DTypeLike

Kind = Literal["int8", "fp8", "int4", "fp4"]
"""Of a weight's numbers. fp8 is float8_e4m3fn, fp4 the E2M1 of MXFP4. Those of 4 bits lie two in a byte, uint8: row
2i in the low half and row 2i + 1 in the high one."""
Packed = Literal["int4", "fp4"]
PACKED: tuple[Kind, ...] = ("int4", "fp4")
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


def decoded(values: Array, kind: Kind) -> tuple[Array, ...]:
    """The numbers that `values` hold, float32: of rows 0, 1, 2 ..., or, two in a byte, of the even and of the odd."""
    if kind == "int8":
        return (values.astype(jnp.float32),)
    if kind == "fp8":
        return (_from_e4m3(values) if values.dtype == jnp.uint8 else values.astype(jnp.float32),)
    if kind == "int4":
        return tuple((half.astype(jnp.int8) >> 4).astype(jnp.float32) for half in (values << 4, values))
    return tuple(_from_e2m1(half) for half in (values & 15, values >> 4))


def _from_e4m3(codes: Array) -> Array:
    """float8_e4m3fn by its bits, uint8 -> float32: XLA:CPU's own conversion takes thrice as long."""
    codes = codes.astype(jnp.int32)
    magnitude = codes & 127
    normal = lax.bitcast_convert_type((magnitude << 20) + (120 << 23), jnp.float32)
    value = jnp.where(magnitude < 8, magnitude.astype(jnp.float32) * 2.0**-9, normal)
    return jnp.where(codes > 127, -value, value)


def _from_e2m1(codes: Array) -> Array:
    """E2M1 by its bits, uint8 below 16 -> float32."""
    codes = codes.astype(jnp.int32)
    magnitude = codes & 7
    normal = lax.bitcast_convert_type((magnitude << 22) + (126 << 23), jnp.float32)
    value = jnp.where(magnitude < 2, magnitude.astype(jnp.float32) * 0.5, normal)
    return jnp.where(codes > 7, -value, value)
