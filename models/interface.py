"""What a family is, and how its layers are walked.

A family's module is called on the flat batch and never sees pages: it hands q, k and v to `attend`, which the caller
supplies. Serving passes paged attention over the cache; training passes dense attention and no cache.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import jax
from flax import nnx
from jax import Array, lax

from pallas_kernels.ragged import AttentionOptions

Cache = Any  # a pytree that only `attend` looks into


class Attend(Protocol):
    """(cache, layer, q [T, H, C], k [T, K, C], v [T, K, C]) -> (cache, [T, H, C])."""

    def __call__(
        self, cache: Cache, layer: Array | int, q: Array, k: Array, v: Array, options: AttentionOptions
    ) -> tuple[Cache, Array]: ...


class Model(Protocol):
    """A decoder. Weights are declared stacked over layers: each leaf of `layers` begins with L."""

    layers: Any

    def __call__(self, token_ids: Array, positions: Array, cache: Cache, attend: Attend) -> tuple[Array, Cache]:
        """token_ids [T], positions [T] -> (hidden states after the last norm [T, D], cache)."""
        ...

    def logits(self, hidden: Array) -> Array:
        """[N, D] -> [N, V] float32."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The numbers that the engine and the planner need of any family."""

    vocab_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int  # tokens the checkpoint was made for


@dataclass(frozen=True, slots=True)
class Tensor:
    """Where one of the checkpoint's tensors goes: into `path` of the module, at layer `layer` of a stacked leaf.

    `place` turns the checkpoint's array into the index of the leaf (after the layer) and the values that belong there:
    the two may differ by a transpose and a reshape, or several tensors may share one fused leaf.
    """

    path: tuple[str, ...]
    layer: int | None
    place: Callable[[Any], tuple[Any, Any]]  # numpy array -> (index, numpy array)


class Family(Protocol):
    """One file of this folder. Registered by the names that `architectures` in config.json uses."""

    architectures: tuple[str, ...]

    def parse(self, config: dict[str, Any]) -> Any:
        """config.json -> the family's frozen config. Raises CheckpointError for what the family does not do."""
        ...

    def shape(self, config: Any) -> ModelShape: ...

    def build(self, config: Any, dtype: Any, seed: int = 0) -> Model:
        """A module with random weights; under nnx.eval_shape, only its shapes."""
        ...

    def tensors(self, config: Any) -> dict[str, Tensor | None]:
        """Every tensor of the checkpoint by name; None for one that may be there and is not needed."""
        ...


def walk_layers(layers: Any, carry: Any, body: Callable[[Any, Any, Array | int], Any]) -> Any:
    """carry -> body(block, carry, layer index) -> carry, through all layers.

    Stacked layers are scanned: few leaves, fast compiles. A list of blocks (see `unstack`) is unrolled: where a scan
    would copy each layer's weights out of the stack, as on a CPU, the list reads them in place.
    """
    if isinstance(layers, nnx.List):
        for index, block in enumerate(layers):
            carry = body(block, carry, index)
        return carry
    graph, state = nnx.split(layers)
    count = jax.tree.leaves(state)[0].shape[0]

    def step(carry: Any, item: Any) -> tuple[Any, None]:
        index, weights = item
        return body(nnx.merge(graph, weights), carry, index), None

    carry, _ = lax.scan(step, carry, (jax.numpy.arange(count), state))
    return carry


def unstack(model: Model) -> None:
    """Turns the stacked layers into a list of blocks, in place. Each leaf is let go as soon as it is cut up."""
    graph, state = nnx.split(model.layers)
    leaves, tree = jax.tree.flatten(state)
    model.layers = None
    del state
    count = leaves[0].shape[0]
    cut: list[list[Array]] = []
    while leaves:
        leaf = leaves.pop(0)
        cut.append([leaf[i] for i in range(count)])
    model.layers = nnx.List(
        [nnx.merge(graph, jax.tree.unflatten(tree, [leaf[i] for leaf in cut])) for i in range(count)]
    )
