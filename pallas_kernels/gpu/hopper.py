"""What a Hopper GPU has for one kernel, and the parts of Mosaic GPU that every kernel here spells alike."""

from typing import Any

import jax
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import Array

SHARED_MEMORY = 232_448  # bytes: of one program, or of all that a streaming multiprocessor holds at once
STREAMING_MULTIPROCESSORS = 132  # of an H100 SXM or H200
WGMMA_M = 64  # rows of one warpgroup's product

Ref = Any  # a Pallas reference; the public API has no type for it

_ALL = ((),) if jax.__version_info__ < (0, 11) else ()  # 0.10 wants an index, 0.11 deprecates it


def load(ref: Ref, layout: Any, *, optimized: bool = True) -> Array:
    """All of `ref`, in registers of that layout. `optimized`: raises where banks of shared memory would conflict."""
    return plgpu.load(ref, *_ALL, layout=layout, optimized=optimized)


def accumulator(rows: int, columns: int) -> Any:
    """A scratch type: the float32 registers that a wgmma adds to."""
    return plgpu.ACC((rows, columns), jnp.float32)  # pyright: ignore[reportPrivateImportUsage] (public; jax lists it elsewhere)


def accumulator_of(sums: Array) -> Any:
    """Those that hold `sums` already."""
    return plgpu.ACC.init(sums)  # pyright: ignore[reportPrivateImportUsage] (as above)
