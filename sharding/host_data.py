"""Numbers of the host -> arrays on a mesh, be it of one process or of many.

With many, every process runs this with equal numbers and fills its own devices; nothing is sent or compared.
"""

from typing import Any

import jax
import numpy as np
from jax import Array
from jax.experimental import multihost_utils
from jax.sharding import Sharding

_HALF = 1 << 31


def put(values: np.ndarray, sharding: Sharding) -> Array:
    """`values`, whole on this host, as shards. Where these lie on other processes too, each must give the same."""
    if sharding.is_fully_addressable:
        return jax.device_put(values, sharding)
    # jax.device_put would compare the values of all processes, through a collective of its own, at every call.
    return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])


def put_tree(tree: Any, sharding: Sharding) -> Any:
    """`put` for each leaf of a tree."""
    return jax.tree.map(lambda leaf: put(np.asarray(leaf), sharding), tree)


def least(number: int) -> int:
    """The least of what the processes give. All of them must call it, at the same place among their programs."""
    if jax.process_count() == 1:
        return number
    high, low = divmod(number, _HALF)  # JAX would cut 64 bits to 32
    gathered = multihost_utils.process_allgather(np.array([high, low], np.int32))
    return min(int(high) * _HALF + int(low) for high, low in gathered)
