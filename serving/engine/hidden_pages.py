"""Hidden states of the model beside its K and V, for a head that guesses from them (see `models/eagle3.py`).

They lie under the page numbers of the pool, and are part of it: what shares a page, takes it from a lower tier or drops
it does so with both. A deployment without such a head has no such part.

On a mesh they are split by their width, as the rows of the head's first product are: to write them nothing is sent, as
every device has the model's hidden states whole, and reading costs the sum of that product over devices, [T, D].
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh, NamedSharding

from pallas_kernels.ragged import Pool, RaggedBatch
from serving.engine.limits import ExecutorLimits, WatchedLayers
from sharding.rules import spec_of, split_of


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class WatchedPool:
    """The pool of a model whose hidden states are kept."""

    pages: Pool
    states: Array  # [pages, page_size, N], N of all watched layers, padded until the mesh divides it


AnyPool = Pool | WatchedPool


def states_form(watched: WatchedLayers, limits: ExecutorLimits, mesh: Mesh) -> Any:
    """A jax.ShapeDtypeStruct."""
    names, parts = ("pages", None, "states"), split_of(mesh, "states")
    shape = (limits.num_pages, limits.page_size, -(-watched.width // parts) * parts)
    return jax.ShapeDtypeStruct(shape, jnp.dtype(watched.dtype), sharding=NamedSharding(mesh, spec_of(names)))


def written(states: Array, new: Array, batch: RaggedBatch) -> Array:
    """`new` [T, N without padding] at the places of the batch's tokens; what is no token is dropped."""
    pages, slots = _places(states, batch)
    pages = jnp.where(batch.sequence_ids < batch.page_table.shape[0], pages, states.shape[0])
    new = jnp.pad(new.astype(states.dtype), ((0, 0), (0, states.shape[2] - new.shape[1])))
    if new.shape[0] == 1:  # XLA would turn a scatter of one row into a select over the whole pool
        pages, slots, new = jnp.append(pages, states.shape[0]), jnp.append(slots, 0), jnp.pad(new, ((0, 1), (0, 0)))
    return states.at[pages, slots].set(new, mode="drop")


def read(states: Array, batch: RaggedBatch) -> Array:
    """[T, N] of the batch's positions; of padding anything."""
    return states[_places(states, batch)]


def _places(states: Array, batch: RaggedBatch) -> tuple[Array, Array]:
    size = states.shape[1]
    count, width = batch.page_table.shape
    owner = jnp.minimum(batch.sequence_ids, count - 1)
    column = jnp.minimum(batch.positions // size, width - 1)
    return batch.page_table[owner, column], batch.positions % size
