"""How rows of a head lie in shared memory, so that a TMA copy writes them and a wgmma reads them."""

from typing import Any

import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp

LEAST_SWIZZLE = 32  # bytes


def tile_columns(head_dim: int) -> int:
    """Numbers in a line of a tile: in 16 bits the widest swizzle, 128 bytes, that cuts a row of a head evenly.

    Numbers of 8 bits lie as those of 16 do, half as wide, as they are widened a tile at a time."""
    return next(columns for columns in (64, 32, 16) if head_dim % columns == 0)


def tiled(head_dim: int, dtype: jnp.dtype) -> tuple[Any, ...]:
    """The transforms of a reference to [..., C]; none where a line would be narrower than any swizzle."""
    columns = tile_columns(head_dim)
    if columns * dtype.itemsize < LEAST_SWIZZLE:
        return ()
    return plgpu.TilingTransform((8, columns)), plgpu.SwizzleTransform(columns * dtype.itemsize)
