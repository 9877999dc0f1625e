"""What a family is, and how its layers are walked.

A family's module is called on the flat batch and never sees pages: it hands q, k and v to `attend`, which the caller
supplies. Serving passes paged attention over the cache; training passes dense attention and no cache.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import jax
from flax import nnx
from jax import Array, lax

from models.hub import Tensors
from pallas_kernels.ragged import AttentionOptions

Cache = Any  # a pytree that only `attend` looks into

LayerForm = Literal["stacked", "list"]
"""How a model holds its layers. stacked: one block whose leaves begin with L, scanned: few leaves, fast compiles.
list: an nnx.List of blocks, unrolled: weights are read in place, where a scan would copy each layer's out of the stack
first, as XLA does on a CPU."""


class Attend(Protocol):
    """(cache, layer, q [T, H, C], k [T, K, C], v [T, K, C]) -> (cache, [T, H, C or value_dim]).

    v is None for latent attention, where k [T, 1, C] is the row that is kept (see AttentionOptions). A window may be
    traced, so that layers which differ in it share a scanned block; None where no layer has one.
    """

    def __call__(
        self,
        cache: Cache,
        layer: Array | int,
        q: Array,
        k: Array,
        v: Array | None,
        options: AttentionOptions,
        *,
        sinks: Array | None = None,  # [H] extra logits that take weight and give no value
        window: Array | int | None = None,  # [] int32
    ) -> tuple[Cache, Array]: ...


class Model(Protocol):
    """A decoder."""

    layers: Any  # in the LayerForm that it was built with

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
    value_dim: int | None = None  # latent attention: pages hold one row of head_dim a position, with the value in it
    experts: int = 0  # of a layer that routes
    experts_per_token: int = 0


class Family(Protocol):
    """One file of this folder. Registered by the names that `architectures` in config.json uses.

    One that reads quantized checkpoints names their kinds in `quant_methods`, as config.json does. One whose models
    tell a head that guesses for them what enters their layers (`Decoder.with_states`) says `gives_states = True`.
    """

    @property
    def architectures(self) -> tuple[str, ...]: ...

    def parse(self, config: dict[str, Any]) -> Any:
        """config.json -> the family's frozen config. Raises CheckpointError for what the family does not do."""
        ...

    def shape(self, config: Any) -> ModelShape: ...

    def build(self, config: Any, dtype: Any, seed: int | None = 0, *, layers: LayerForm = "stacked") -> Model:
        """A module with random weights; without a seed, only its shapes: each leaf is a jax.ShapeDtypeStruct."""
        ...

    def tensors(self, config: Any) -> Tensors:
        """Every tensor of the checkpoint by name; None for one that may be there and is not needed."""
        ...


def walk_layers(
    layers: Any, carry: Any, body: Callable[[Any, Any, Array | int], Any], *, part: range | None = None, first: int = 0
) -> Any:
    """carry -> body(block, carry, layer index) -> carry, through all of these layers or through `part` of them.

    Stacked layers are scanned, a list of blocks is unrolled (see LayerForm). `first` is the index that the first of
    the walked layers has in the model.
    """
    if isinstance(layers, nnx.List):
        for offset, at in enumerate(range(len(layers)) if part is None else part):
            carry = body(layers[at], carry, first + offset)
        return carry
    graph, state = nnx.split(layers)
    count = jax.tree.leaves(state)[0].shape[0]
    part = range(count) if part is None else part
    if len(part) < count:  # by index: a slice of the stack would be a copy of all of it
        begin = part.start

        def step_at(carry: Any, offset: Array) -> tuple[Any, None]:
            weights = jax.tree.map(lambda leaf: lax.dynamic_index_in_dim(leaf, begin + offset, keepdims=False), state)
            return body(nnx.merge(graph, weights), carry, first + offset), None

        return lax.scan(step_at, carry, jax.numpy.arange(len(part)))[0]

    def step(carry: Any, item: Any) -> tuple[Any, None]:
        index, weights = item
        return body(nnx.merge(graph, weights), carry, index), None

    carry, _ = lax.scan(step, carry, (first + jax.numpy.arange(count), state))
    return carry
