"""The leaves of a model as they are stored and loaded: layer by layer, whichever form the model holds them in."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array, lax
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from models.quantized_array import WeightForm

Progress = Callable[[int, int], None]  # (bytes done, bytes in all)
LeafPath = tuple[Any, ...]  # in a model that holds its layers as a list: ("layers", 3, "qkv", "weight")


@dataclass(frozen=True, slots=True)
class Leaf:
    """One weight of one layer, or one outside the layers."""

    path: LeafPath
    shape: tuple[int, ...]
    dtype: Any
    names: tuple[str | None, ...]  # the logical name of each dimension
    form: WeightForm | None = None  # of the weight in fewer bits that this is a part of, by the last name of its path

    @property
    def weight(self) -> "Leaf":
        """The weight that it is a part of, in full and in float32."""
        assert self.form is not None
        return Leaf(self.path[:-1], self.form.shape, jnp.dtype(jnp.float32), self.form.names)


def parts_of(listed: Any) -> list[tuple[str, list[Leaf]]]:
    """The leaves of a model that holds its layers as a list, in parts with names: what is outside, then each layer."""
    parts: dict[str, list[Leaf]] = {}
    for path, variable in nnx.to_flat_state(nnx.state(listed)):
        value = variable.get_value()
        names, form = variable.get_metadata("axes"), variable.get_metadata().get("form")
        leaf = Leaf(path, tuple(value.shape), value.dtype, names, form)
        parts.setdefault(f"{path[0]}.{path[1]}" if in_layer(path) else "outside", []).append(leaf)
    return list(parts.items())


def in_layer(path: LeafPath) -> bool:
    return len(path) > 1 and isinstance(path[1], int)


class Assembly:
    """A model whose leaves arrive one by one. Those of stacked layers are written into their stack on the devices:
    there is never a whole stack on the host, and never two on the devices."""

    def __init__(self, model: Any) -> None:
        """`model` has its shapes alone (jax.ShapeDtypeStruct), in either form of its layers."""
        self._graph, state = nnx.split(model)
        self._variables = dict(nnx.to_flat_state(state))
        self._arrays: dict[LeafPath, Array] = {}

    def put(self, path: LeafPath, array: Array) -> None:
        if path in self._variables:
            self._arrays[path] = jax.block_until_ready(array)
            return
        stacked = (path[0], *path[2:])
        if stacked not in self._arrays:
            count = self._variables[stacked].get_value().shape[0]
            self._arrays[stacked] = jnp.zeros((count, *array.shape), array.dtype, device=_stack_of(array.sharding))
        # Waited for, so that the layers on the host do not pile up.
        self._arrays[stacked] = jax.block_until_ready(_write(self._arrays[stacked], array, path[1]))

    def model(self) -> Any:
        leaves = [(path, variable.replace(self._arrays[path])) for path, variable in self._variables.items()]
        return nnx.merge(self._graph, nnx.from_flat_state(leaves))


@dataclass(slots=True)
class Meter:
    progress: Progress | None
    total: int
    done: int = 0

    def add(self, nbytes: int) -> None:
        self.done += nbytes
        if self.progress is not None:
            self.progress(self.done, self.total)


def nbytes_of(leaves: Iterable[Leaf]) -> int:
    return sum(jnp.dtype(leaf.dtype).itemsize * math.prod(leaf.shape) for leaf in leaves)


def _stack_of(sharding: Sharding) -> Sharding:
    """Of [L, ...] where each layer lies as `sharding` says."""
    if isinstance(sharding, NamedSharding):
        return NamedSharding(sharding.mesh, PartitionSpec(None, *sharding.spec))
    return sharding


def _update(stack: Array, layer: Array, index: Array) -> Array:
    return lax.dynamic_update_index_in_dim(stack, layer, index, 0)


_write = jax.jit(_update, donate_argnums=0)
