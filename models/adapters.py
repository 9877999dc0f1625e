"""Which weights of a model adapters may update, and how one adapter's matrices lie beside them.

Adapters have A and B of each linear layer that the hub names (q_proj, up_proj ...). Here some of those are fused in one
weight, so R, the rank dimension beside that weight, has a run of `max_rank` for each of its targets:

    down [slots, *rows, R]     | A of q_proj | A of k_proj | A of v_proj |
    up   [slots, R, *columns]  B of q_proj in the columns of q and the rows of its run, zeros in the others, ...

A model whose layers are stacked has L before `slots`. The number of slots and `max_rank` are fixed at load, so that
programs are compiled once; a slot is written anew when another adapter takes it.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from models.adapted_array import AdaptedArray, AdapterProduct, AdapterRows, Names
from models.hub import Tensor, Tensors
from models.layers import AttentionOutput, GatedMLP, GroupedQKV
from models.leaves import LeafPath
from models.moe import expert_order
from models.quantization import QuantizedWeight
from sharding.params import Placement

# Modules whose products go through `layers.contract` with the whole weight.
_WEIGHTS: dict[type[nnx.Module], tuple[str, ...]] = {
    GroupedQKV: ("weight",),
    AttentionOutput: ("weight",),
    GatedMLP: ("gate_up", "down"),
}


class AdapterError(ValueError):
    """An adapter, or a model for adapters, that does not fit. The message names the field, the tensor or the target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptedLeaf:
    """One weight, of one layer or of a stack of them. Sizes are the checkpoint's, before any mesh."""

    path: LeafPath  # in the model, with the weight's name last
    stack: int | None  # L, where layers are stacked
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    names: tuple[Names, Names]  # the logical names of both
    targets: tuple[str, ...]  # the hub's names of the linear layers in it, by their runs of R
    rank: int  # R

    @property
    def down_names(self) -> Names:
        return (*self._lead, *self.names[0], None)

    @property
    def up_names(self) -> Names:
        return (*self._lead, None, *self.names[1])

    @property
    def _lead(self) -> Names:
        return () if self.stack is None else ("layers",)

    def empty(self, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
        """(down, up) of one adapter on the host."""
        lead = () if self.stack is None else (self.stack,)
        return (
            np.zeros((*lead, *self.rows, self.rank), dtype),
            np.zeros((*lead, self.rank, *self.columns), dtype),
        )


@dataclass(frozen=True, slots=True)
class Target:
    """Where the matrices of one of the hub's linear layers go."""

    leaf: int  # of the layout's leaves
    layer: int | None  # in its stack
    run: int  # of R
    parts: tuple[Tensor, ...]  # whose rows it has, one after another

    @property
    def shape(self) -> tuple[int, int]:
        """[out, in]"""
        return sum(part.shape[0] for part in self.parts), self.parts[0].shape[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterLayout:
    """Of one model, for `slots` adapters of at most `max_rank`."""

    slots: int
    max_rank: int
    dtype: Any
    leaves: tuple[AdaptedLeaf, ...]
    targets: Mapping[str, Target]  # by the hub's name: model.layers.0.self_attn.q_proj
    linear: frozenset[str]  # the names of all linear layers that the model has

    @property
    def offered(self) -> tuple[str, ...]:
        """The last parts of the names of `targets`."""
        return tuple(dict.fromkeys(target for leaf in self.leaves for target in leaf.targets))

    def on_host(self, matrices: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> list[np.ndarray]:
        """One adapter as (down, up) of each leaf, from A [r, in] and B [out, r] of each target by its name. B has the
        adapter's scale in it."""
        arrays = [leaf.empty(self.dtype) for leaf in self.leaves]
        for name, (a, b) in matrices.items():
            target = self.targets[name]
            down, up = arrays[target.leaf]
            if target.layer is not None:
                down, up = down[target.layer], up[target.layer]
            begin = target.run * self.max_rank
            _write(target, a, b, down[..., begin : begin + len(a)], up[begin : begin + len(a)])
        return [array for pair in arrays for array in pair]

    def placed(self, arrays: Sequence[np.ndarray], placement: Placement) -> tuple[Array, ...]:
        """What `on_host` gives, on the devices."""
        return tuple(placement.place(array, names) for array, names in zip(arrays, self._names(), strict=True))

    def empty(self, placement: Placement) -> tuple[Array, ...]:
        """All slots, empty, on the devices: (down, up) of each leaf, with `slots` before what one adapter has."""

        def zeros(leaf: AdaptedLeaf, shape: tuple[int, ...], names: Names) -> Array:
            at = 0 if leaf.stack is None else 1
            names = (*names[:at], None, *names[at:])
            shape = placement.shape((*shape[:at], self.slots, *shape[at:]), names)
            return jnp.zeros(shape, self.dtype, device=placement.sharding(names))

        made = []
        for leaf in self.leaves:
            down, up = leaf.empty(self.dtype)
            made += [zeros(leaf, down.shape, leaf.down_names), zeros(leaf, up.shape, leaf.up_names)]
        return tuple(made)

    def written(self, stacks: tuple[Array, ...], one: tuple[Array, ...], slot: Array) -> tuple[Array, ...]:
        """`stacks` with the adapter `one` in `slot`. Pure; to be jitted with `stacks` donated."""
        leaves = [leaf for leaf in self.leaves for _ in range(2)]
        return tuple(
            jax.lax.dynamic_update_index_in_dim(stack, value, slot, 0 if leaf.stack is None else 1)
            for leaf, stack, value in zip(leaves, stacks, one, strict=True)
        )

    def attach(self, model: Any, stacks: tuple[Array, ...], rows: AdapterRows, product: AdapterProduct) -> None:
        """Puts `AdaptedWeight`s in the place of the model's, inside a trace."""
        modules = dict(nnx.iter_modules(model))
        shared: dict[int | None, _Rows] = {}  # rows that a scan takes along with its weights have an L too
        for leaf, down, up in zip(self.leaves, stacks[::2], stacks[1::2], strict=True):
            module, name = modules[leaf.path[:-1]], leaf.path[-1]
            if leaf.stack not in shared:
                shared[leaf.stack] = _Rows(rows, leaf.stack)
            setattr(module, name, AdaptedWeight(leaf, getattr(module, name), down, up, shared[leaf.stack], product))

    def _names(self) -> Iterator[Names]:
        for leaf in self.leaves:
            yield leaf.down_names
            yield leaf.up_names


def lay_out(
    model: Any, table: Tensors, *, slots: int, max_rank: int, dtype: Any, wanted: Sequence[str] = (), multiple: int = 1
) -> AdapterLayout:
    """For a model that has its shapes alone, and the hub's names for them. `wanted` are targets by the last parts of
    their names; without any, all that can be adapted. R is a multiple of `multiple`.

    Raises AdapterError for a target that cannot be.
    """
    weights = dict(_weights(model))
    found = _found_targets(weights, table)
    linear = frozenset(
        name.removesuffix(".weight") for name, entry in table.items() if entry is not None and _is_linear(name, entry)
    )
    for name in wanted:
        if name not in {_last(module) for module in found}:
            raise AdapterError(f"{name} is no target of this model; it can be {', '.join(_lasts(found))}")
    runs: dict[LeafPath, list[str]] = {}
    for module, (path, _, _) in found.items():
        names = runs.setdefault(path, [])
        if (not wanted or _last(module) in wanted) and _last(module) not in names:
            names.append(_last(module))
    runs = {path: names for path, names in runs.items() if names}
    if not runs:
        raise AdapterError("this model has no weight that adapters are offered for")
    places = {path: i for i, path in enumerate(runs)}
    leaves = tuple(
        _leaf(path, *weights[path], tuple(names), -(-len(names) * max_rank // multiple) * multiple)
        for path, names in runs.items()
    )
    targets = {
        module: Target(places[path], layer, runs[path].index(_last(module)), parts)
        for module, (path, layer, parts) in found.items()
        if _last(module) in runs.get(path, ())
    }
    return AdapterLayout(
        slots=slots, max_rank=max_rank, dtype=jnp.dtype(dtype), leaves=leaves, targets=targets, linear=linear
    )


def adapter_rows(slots_of_tokens: Array, slots: int) -> AdapterRows:
    """slots_of_tokens [shards, T] int32; whatever is outside of 0 .. slots - 1 is a token without an adapter."""
    order = jax.vmap(lambda of_shard: expert_order(of_shard[:, None], slots))(slots_of_tokens)
    return AdapterRows(order.pairs.reshape(-1), order.places.reshape(-1), order.group_sizes.reshape(-1))


class _Rows(nnx.Module):
    """AdapterRows that travel with the weights of layers."""

    def __init__(self, rows: AdapterRows, stack: int | None) -> None:
        if stack is not None:
            rows = AdapterRows(*(jnp.broadcast_to(part, (stack, *part.shape)) for part in rows))
        self.tokens, self.places, self.group_sizes = map(nnx.Variable, rows)


class AdaptedWeight(nnx.Module):
    """In the place of a weight, while a program is traced. `weight[...]` is an AdaptedArray."""

    def __init__(
        self, leaf: AdaptedLeaf, weight: Any, down: Array, up: Array, rows: _Rows, product: AdapterProduct
    ) -> None:
        self.weight = weight
        self.down = nnx.Variable(down)
        self.up = nnx.Variable(up)
        self.rows = rows
        self.names = leaf.names
        self.product = product

    def __getitem__(self, index: Any) -> AdaptedArray:
        if index is not ...:
            raise TypeError("a weight with adapters is taken whole, as weight[...]")
        rows = AdapterRows(self.rows.tokens[...], self.rows.places[...], self.rows.group_sizes[...])
        return AdaptedArray(self.weight[...], self.down[...], self.up[...], rows, self.names, self.product)


_Weight = tuple[tuple[int, ...], Names, int, int | None]  # shape and names without L, its summed dimensions, L


def _weights(model: Any) -> Iterator[tuple[LeafPath, _Weight]]:
    """The weights that can be adapted."""
    for path, module in nnx.iter_modules(model):
        for name in next((names for kind, names in _WEIGHTS.items() if isinstance(module, kind)), ()):
            weight = getattr(module, name)
            if isinstance(weight, QuantizedWeight):
                form = weight.form
                lead = weight.values.get_value().shape[: weight.values.get_value().ndim - len(form.shape)]
                yield (*path, name), (form.shape, form.names, len(form.summed), lead[0] if lead else None)
                continue
            shape, names = tuple(weight.get_value().shape), weight.get_metadata("axes")
            stack = shape[0] if names[0] == "layers" else None
            begin = 0 if stack is None else 1
            yield (*path, name), (shape[begin:], names[begin:], len(weight.get_metadata("summed")), stack)


def _leaf(
    path: LeafPath,
    shape: tuple[int, ...],
    names: Names,
    summed: int,
    stack: int | None,
    targets: tuple[str, ...],
    rank: int,
) -> AdaptedLeaf:
    return AdaptedLeaf(
        path=path,
        stack=stack,
        rows=shape[:summed],
        columns=shape[summed:],
        names=(names[:summed], names[summed:]),
        targets=targets,
        rank=rank,
    )


def _found_targets(
    weights: Mapping[LeafPath, _Weight], table: Tensors
) -> dict[str, tuple[LeafPath, int | None, tuple[Tensor, ...]]]:
    """The hub's name of a linear layer -> (the weight that it is in, its layer in a stack, what it is made of)."""
    found: dict[str, tuple[LeafPath, int | None, tuple[Tensor, ...]]] = {}
    for name, entry in table.items():
        if entry is None or not _is_linear(name, entry):
            continue
        tensor = entry.parts[0]
        listed = tensor.path if tensor.layer is None else (tensor.path[0], tensor.layer, *tensor.path[1:])
        module = name.removesuffix(".weight")
        if listed in weights:
            found[module] = (listed, None, entry.parts)
        elif tensor.path in weights:
            found[module] = (tensor.path, tensor.layer, entry.parts)
    return found


def _is_linear(name: str, entry: Any) -> bool:
    return name.endswith(".weight") and len(entry.shape) == 2


def _write(target: Target, a: np.ndarray, b: np.ndarray, down: np.ndarray, up: np.ndarray) -> None:
    """A and B of one target into its run: down [*rows, r], up [r, *columns]."""
    rank, num_rows = len(a), down.ndim - 1
    first = target.parts[0]
    outs = _out_dimensions(first)
    order = [dimension - outs for dimension in first.order if dimension >= outs]
    down[...] = a.T.reshape(*first.split[outs:], rank).transpose(*order, len(order))
    begin = 0
    for part in target.parts:
        end = begin + part.shape[0]
        outs = _out_dimensions(part)
        order = [dimension + 1 for dimension in part.order if dimension < outs]
        values = b[begin:end].T.reshape(rank, *part.split[:outs]).transpose(0, *order)
        up[(slice(None), *part.part[num_rows:])] = values
        begin = end


def _out_dimensions(part: Tensor) -> int:
    """How many of `split` make up the rows of the tensor."""
    return next(n for n in range(1, len(part.split)) if math.prod(part.split[n:]) == part.shape[1])


def _last(name: str) -> str:
    return name.removesuffix(".weight").rpartition(".")[2]


def _lasts(names: Mapping[str, Any]) -> list[str]:
    return sorted({_last(name) for name in names})
