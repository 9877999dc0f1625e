"""A model's weights on a mesh: which shape each has there, and how a leaf on the host becomes its shards.

    K < devices     Each KV head is repeated, and its query heads are shared out among the copies, so that a device
                    holds the KV heads that its query heads read. The order of query heads does not change.
    V, F            are padded with zeros up to a multiple of the devices that split them.

Both change a leaf's shape and none of its module's code, which takes its sizes from its weights.
"""

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax import Array
from jax.sharding import Mesh, NamedSharding

from sharding.host_data import put
from sharding.mesh import MeshError, divisors, stage_meshes
from sharding.rules import RULES, spec_of, split_of

Names = tuple[str | None, ...]  # the logical name of each dimension of a leaf
_OF_A_KV_HEAD = {"queries": 0, "queries_key_value": 2}  # what lies beside the queries there, and goes to each copy


@dataclass(frozen=True, slots=True)
class Placement:
    """Where one model's weights go."""

    mesh: Mesh
    kv_copies: int  # of each KV head

    def sharding(self, names: Names) -> NamedSharding:
        return NamedSharding(self.mesh, spec_of(names))

    def stages(self) -> "tuple[Placement, ...]":
        """Of each stage of a pipeline."""
        return tuple(Placement(mesh, self.kv_copies) for mesh in stage_meshes(self.mesh))

    def shape(self, shape: tuple[int, ...], names: Names) -> tuple[int, ...]:
        """The shape on the mesh of a leaf that has `shape` in its checkpoint. Raises MeshError where it cannot be."""
        return tuple(self._size(size, name, names) for size, name in zip(shape, names, strict=True))

    def place(self, values: np.ndarray, names: Names) -> Array:
        """A leaf on the host, as its shards on the devices."""
        return put(self.laid_out(values, names), self.sharding(names))

    def laid_out(self, values: np.ndarray, names: Names) -> np.ndarray:
        """`values` with KV heads repeated and padding; itself where nothing is to be done. Raises MeshError."""
        shape = self.shape(values.shape, names)
        if "kv_heads" in names and self.kv_copies > 1:
            values = _with_copies(values, names.index("kv_heads"), names, self.kv_copies)
        if values.shape == shape:
            return values
        return np.pad(values, [(0, after - before) for before, after in zip(values.shape, shape, strict=True)])

    def abstract(self, state: Any) -> Any:
        """A model's state as jax.ShapeDtypeStructs on the mesh: enough to compile for devices that are not there."""

        def leaf(variable: nnx.Variable) -> nnx.Variable:
            value, names = variable.get_value(), variable.get_metadata("axes")
            return variable.replace(
                jax.ShapeDtypeStruct(self.shape(value.shape, names), value.dtype, sharding=self.sharding(names))
            )

        return jax.tree.map(leaf, state, is_leaf=lambda x: isinstance(x, nnx.Variable))

    def _size(self, size: int, name: str | None, names: Names) -> int:
        if name is None:
            return size
        if name == "kv_heads":
            return size * self.kv_copies
        if name in _OF_A_KV_HEAD and "kv_heads" in names:
            beside = _OF_A_KV_HEAD[name]
            return (size - beside) // self.kv_copies + beside
        parts = split_of(self.mesh, name)
        if size % parts and not RULES[name].pads:
            raise MeshError(
                f"{size} {name} cannot be split {parts} ways over {' x '.join(RULES[name].axes)}: "
                f"it can be {', '.join(map(str, divisors(size, size)))}"
            )
        return -(-size // parts) * parts


def placement_of(mesh: Mesh, num_heads: int, num_kv_heads: int) -> Placement:
    """Raises MeshError where the heads cannot be split over the mesh."""
    parts = split_of(mesh, "heads")
    if num_heads % parts:
        raise MeshError(
            f"{num_heads} query heads cannot be split {parts} ways over expert x tensor: "
            f"their product can be {', '.join(map(str, divisors(num_heads, num_heads)))}"
        )
    return Placement(mesh, kv_copies(num_heads, num_kv_heads, parts))


def kv_copies(num_heads: int, num_kv_heads: int, parts: int) -> int:
    """How often each KV head is there, so that `parts` devices have the same number, each those of its query heads.

    The least divisor of G = H / K that makes K a multiple of `parts`; there is one where `parts` divides H.
    """
    group = num_heads // num_kv_heads
    return next(copies for copies in divisors(group, group) if num_kv_heads * copies % parts == 0)


def place_model(model: Any, placement: Placement) -> Any:
    """The same model with its weights on the mesh. For models that fit the host: see models.checkpoint for others."""
    graph, state = nnx.split(model)

    def leaf(variable: nnx.Variable) -> nnx.Variable:
        return variable.replace(placement.place(np.asarray(variable.get_value()), variable.get_metadata("axes")))

    return nnx.merge(graph, jax.tree.map(leaf, state, is_leaf=lambda x: isinstance(x, nnx.Variable)))


def _with_copies(values: np.ndarray, at: int, names: Names, copies: int) -> np.ndarray:
    """`values` with dimension `at` (K) repeated, and the queries of each KV head shared out among its copies."""
    following = names[at + 1] if at + 1 < len(names) else None
    if following not in _OF_A_KV_HEAD:
        return np.repeat(values, copies, axis=at)
    queries = values.shape[at + 1] - _OF_A_KV_HEAD[following]
    before, after = values.shape[: at + 1], values.shape[at + 2 :]
    apart = np.moveaxis(values, at + 1, 0)
    shared = np.moveaxis(apart[:queries], 0, at + 1).reshape(*before, copies, queries // copies, *after)
    beside = np.moveaxis(apart[queries:], 0, at + 1)
    repeated = np.repeat(np.expand_dims(beside, at + 1), copies, axis=at + 1)
    together = np.concatenate([shared, repeated], axis=at + 2)
    return together.reshape(*before[:-1], before[-1] * copies, *together.shape[at + 2 :])
