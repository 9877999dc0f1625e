"""A family's whole forward on sequences of one length, compiled."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from models.dense import dense_attend
from models.interface import Model


def dense_program(model: Model, length: int) -> tuple[Any, tuple[Array, ...]]:
    """(jitted function of (weights, token ids [T]) that gives logits [T, V], the weights)."""
    graph, state = nnx.split(model)
    leaves, tree = jax.tree.flatten(state)

    def run(weights: tuple[Array, ...], token_ids: Array) -> Array:
        merged = nnx.merge(graph, jax.tree.unflatten(tree, weights))
        hidden, _ = merged(token_ids, jnp.arange(length), None, dense_attend(1, length))
        return merged.logits(hidden)

    return jax.jit(run), tuple(leaves)


def dense_states(model: Model, token_ids: np.ndarray) -> np.ndarray:
    """[T] -> [T, D] after the last norm."""
    graph, state = nnx.split(model)
    length = len(token_ids)

    @jax.jit
    def run(state: Any, token_ids: Array) -> Array:
        return nnx.merge(graph, state)(token_ids, jnp.arange(length), None, dense_attend(1, length))[0]

    return np.asarray(run(state, jnp.asarray(token_ids, jnp.int32)))


def dense_logits(model: Model, token_ids: np.ndarray) -> np.ndarray:
    """[T] -> [T, V]."""
    program, weights = dense_program(model, len(token_ids))
    return np.asarray(program(weights, jnp.asarray(token_ids, jnp.int32)))
