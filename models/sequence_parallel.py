"""Hidden states of long steps, each device of a shard with its own tokens (Korthikanti et al., arXiv 2205.05198).

    whole   [norm, product by columns] on every token ... product by rows, all-reduce ... on every token
    split   [norm] on a device's own tokens, all-gather, product by columns ... product by rows, reduce-scatter ... own

A ring's all-reduce is a reduce-scatter and an all-gather, so as many vectors are sent; what lies between them, residual
sums and norms with their activations, is done and kept once instead of by every device. A short step stays whole: its
activations are small, and two collectives of small messages take longer than one.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
from flax import nnx
from jax import Array, lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from models.decoder import Decoder
from models.layers import AttentionOutput, GatedMLP, GroupedQKV, contract
from models.moe import RoutedExperts
from models.stages import Stages
from sharding.mesh import stage_meshes
from sharding.rules import MODEL_AXES, RULES

LONG_STEP = 1024  # tokens of a data shard

_SHARD = RULES["tokens"].axes
_SPLIT = PartitionSpec((*_SHARD, *MODEL_AXES), None)


@dataclass(frozen=True, slots=True)
class SequenceParallel:
    """How hidden states of a step lie on a mesh. `fewest`: the tokens of a data shard from which they are split."""

    mesh: Mesh
    fewest: int

    def splits(self, tokens: int) -> bool:
        """Whether a step of so many tokens, of all data shards, is split."""
        shards = self.mesh.shape["data"]
        devices = shards * self.mesh.shape["expert"] * self.mesh.shape["tensor"]
        return tokens >= self.fewest * shards and tokens % devices == 0

    def split(self, x: Array) -> Array:  # [T, D]
        return self._placed(x, _SPLIT)

    def whole(self, x: Array) -> Array:  # [..., T, N]
        return self._placed(x, PartitionSpec(*(None,) * (x.ndim - 2), _SHARD, None))

    def contract_columns(self, spec: str, x: Array, weight: Any) -> Array:
        """`contract` of x [T, D] with a weight whose columns are split, as a block has it after its norm."""
        return contract(spec, self.whole(x), weight)

    def contract_rows(self, spec: str, x: Array, weight: Array) -> Array:
        """`contract` with a weight whose first dimension is split: [T, ...] -> [T, D], each device with the sums of its
        own tokens. They are sent in x's dtype, as TPUs' compilers send those of an all-reduce."""
        if not self.splits(x.shape[0]) or not isinstance(weight, Array):  # beside low-rank updates it is not one
            return contract(spec, x, weight)
        given = PartitionSpec(_SHARD, MODEL_AXES, *(None,) * (x.ndim - 2))
        rows = PartitionSpec(MODEL_AXES, *(None,) * (weight.ndim - 1))
        local = partial(_scattered, spec)
        return jax.shard_map(local, mesh=self.mesh, in_specs=(given, rows), out_specs=_SPLIT, check_vma=False)(
            x, weight
        )

    def _placed(self, x: Array, spec: PartitionSpec) -> Array:
        return lax.with_sharding_constraint(x, NamedSharding(self.mesh, spec)) if self.splits(x.shape[-2]) else x


def _scattered(spec: str, x: Array, weight: Array) -> Array:
    return lax.psum_scatter(contract(spec, x, weight), MODEL_AXES, scatter_dimension=0, tiled=True)


def fewest_tokens(given: int | None, platform: str) -> int:
    """Of a step that is split, where a deployment says `given`; 0: none is. By default on GPUs alone: XLA:GPU sums in
    float32, twice the bytes, and keeps more activations; TPUs' compilers send and keep as much either way."""
    if given is not None:
        return given
    return LONG_STEP if platform == "gpu" else 0


def split_sequences(model: Any, mesh: Mesh, fewest: int) -> None:
    """From here on the model's long steps run so. They stay whole where `fewest` is 0, where one device has all of a
    shard, in models with routed experts, whose exchange has ways of its own (see split_experts.py), and where the
    weights of products by rows are kept in fewer bits."""
    if isinstance(model, Stages):
        for part, stage in zip(model.parts, stage_meshes(mesh), strict=True):
            split_sequences(part, stage, fewest)
        return
    modules = [module for _, module in nnx.iter_modules(model)]
    if (
        not fewest
        or mesh.shape["expert"] * mesh.shape["tensor"] == 1
        or any(isinstance(module, RoutedExperts) for module in modules)
        or not all(isinstance(one.get_value(), Array | jax.ShapeDtypeStruct) for one in _by_rows(modules))
    ):
        return
    way = SequenceParallel(mesh, fewest)
    for module in modules:
        if isinstance(module, Decoder):
            module.on_mesh = way
        if isinstance(module, GroupedQKV | GatedMLP):
            module.contract_columns = way.contract_columns
        if isinstance(module, AttentionOutput | GatedMLP):
            module.contract_rows = way.contract_rows


def _by_rows(modules: Iterable[Any]) -> Iterator[nnx.Variable]:
    """The weights of products by rows."""
    for module in modules:
        if isinstance(module, AttentionOutput):
            yield module.weight
        elif isinstance(module, GatedMLP):
            yield module.down
