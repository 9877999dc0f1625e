"""A page that is split over devices leaves and comes back bit for bit, each device with its own part."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from jax.sharding import NamedSharding

from serving.engine.device_memory import Resident
from serving.engine.tiers.exchange import PageExchange
from sharding.mesh import make_mesh
from sharding.rules import spec_of

PAGES = 8
SHAPE = (PAGES, 2, 4, 16, 8)  # pages, L, page_size, 2K, C


def pool_on(sizes: dict[str, int], dtype: Any) -> tuple[Array, Any]:
    mesh = make_mesh(sizes)
    words = np.random.default_rng(1).integers(0, 256, (*SHAPE[:-1], SHAPE[-1] * jnp.dtype(dtype).itemsize), np.uint8)
    values = words.view(jnp.dtype(dtype))
    return jax.device_put(values, NamedSharding(mesh, spec_of(("pages", None, None, "kv_heads", None)))), mesh


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "float8_e4m3fn"])
@pytest.mark.parametrize("sizes", [{"tensor": 8}, {"tensor": 4, "expert": 2}])
def test_pages_come_back_as_they_were(sizes: dict[str, int], dtype: str) -> None:
    pool, mesh = pool_on(sizes, dtype)
    before = np.asarray(pool).view(np.uint8)
    resident = Resident((), pool)
    exchange = PageExchange(resident, mesh)
    gathered = [np.asarray(array)[:3] for array in exchange.gather([5, 0, 7])]
    size = exchange.size_for(3)
    padded = [np.concatenate([array, np.zeros((size - 3, *array.shape[1:]), array.dtype)]) for array in gathered]
    exchange.scatter(exchange.stage(padded), [1, None, 2])
    after = np.asarray(resident.pool).view(np.uint8)
    expected = before.copy()
    expected[1], expected[2] = before[5], before[7]
    np.testing.assert_array_equal(after, expected)
    assert resident.pool.sharding == pool.sharding or resident.pool.sharding.is_equivalent_to(pool.sharding, 5)
