"""A family's whole forward on one sequence, each of whose tokens has an adapter of its own or none."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from models.adapted_array import AdapterProduct
from models.adapters import AdapterLayout, adapter_rows
from models.dense import dense_attend
from sharding.mesh import one_device
from sharding.params import Placement

HOME = Placement(one_device(), kv_copies=1)


def stacks_with(layout: AdapterLayout, adapters: dict[int, list[np.ndarray]]) -> tuple[Array, ...]:
    stacks = layout.empty(HOME)
    for slot, arrays in adapters.items():
        stacks = layout.written(stacks, layout.placed(arrays, HOME), jnp.asarray(slot))
    return stacks


def adapted_program(
    model: Any, layout: AdapterLayout, stacks: tuple[Array, ...]
) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """(token_ids [T], slots [T] (-1: none)) -> [T, V]."""
    graph, state = nnx.split(model)

    @jax.jit
    def run(state: Any, stacks: tuple[Array, ...], token_ids: Array, slots: Array) -> Array:
        merged = nnx.merge(graph, state)
        layout.attach(merged, stacks, adapter_rows(slots[None], layout.slots), AdapterProduct(one_device()))
        hidden, _ = merged(token_ids, jnp.arange(len(token_ids)), None, dense_attend(1, len(token_ids)))
        return merged.logits(hidden)

    def logits(token_ids: np.ndarray, slots: np.ndarray) -> np.ndarray:
        return np.asarray(run(state, stacks, jnp.asarray(token_ids, jnp.int32), jnp.asarray(slots, jnp.int32)))

    return logits
