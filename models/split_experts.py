"""Routed experts over a mesh. Each device holds its own experts, or its columns of them; two ways join the devices.

    sum          every device of a data shard has that shard's tokens. It picks the rows of its experts, and one sum
                 joins the devices. Tokens are gathered over `data` before, and their sums scattered after.
    all-to-all   the devices share the tokens out. Each sends its tokens' rows to the devices that hold their experts,
                 these send the results back, and each token's owner weighs and sums them.

Both give the same numbers, for any imbalance: nothing has a capacity, nothing is dropped. `ExpertExchange.way` says
which one a step of so many tokens takes: the one that sends fewer bytes.

An all-to-all is ragged where the backend has `jax.lax.ragged_all_to_all`. Elsewhere each device sends every other one
as many rows as could be meant for it, most of them padding.
"""

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array, lax
from jax.sharding import Mesh, PartitionSpec

from models.moe import (
    ApplyExperts,
    Choose,
    ExpertMLPs,
    Gate,
    RoutedExperts,
    RouterRule,
    Routing,
    apply_experts,
    expert_order,
    route,
)
from models.stages import Stages
from pallas_kernels.grouped import ExpertWeights, GroupedMatmul, QuantizedExperts
from sharding.mesh import stage_meshes
from sharding.rules import EXPERT_AXES, MODEL_AXES, spec_of

log = logging.getLogger(__name__)

Wish = Literal["auto", "sum", "all-to-all"]
Way = Literal["sum", "ragged all-to-all", "padded all-to-all"]
GATE_UP = ("experts", None, "model", "expert_mlp")
DOWN = ("experts", "expert_mlp", "model")
_TOKENS = spec_of(("tokens", None))
RAGGED_PLATFORMS = ("tpu", "gpu", "cuda")  # whose compilers have ragged_all_to_all


@dataclass(frozen=True, slots=True)
class ExpertExchange:
    """How the devices of a mesh exchange tokens and results of routed experts."""

    mesh: Mesh
    wish: Wish = "auto"

    @property
    def ragged(self) -> bool:
        return self.mesh.devices.flat[0].platform in RAGGED_PLATFORMS

    def way(self, tokens: int, experts: int, top_k: int) -> Way:
        """Of a step that has so many tokens in each data shard, of a layer with so many experts."""
        all_to_all: Way = "ragged all-to-all" if self.ragged else "padded all-to-all"
        if self.wish != "auto":
            return "sum" if self.wish == "sum" else all_to_all
        ways: tuple[Way, ...] = ("sum", all_to_all)  # the first of equals
        return min(ways, key=lambda way: self.rows_sent(way, tokens, experts, top_k))

    def rows_sent(self, way: Way, tokens: int, experts: int, top_k: int) -> float:
        """Vectors of the model's width that one device sends for a layer, its collectives done as rings."""
        data, expert, tensor = (self.mesh.shape[axis] for axis in ("data", "expert", "tensor"))
        if way == "sum":
            return 2 * (data - 1) * tokens + _all_reduce(expert * tensor) * tokens
        devices, share = data * expert, -(-tokens // expert)
        sent = share * top_k / devices if way == "ragged all-to-all" else share * min(top_k, experts // devices)
        return 2 * (devices - 1) * sent + (expert - 1) * share + _all_reduce(tensor) * share


def split_experts(model: Any, mesh: Mesh, wish: Wish = "auto") -> None:
    """From here on every RoutedExperts of the model runs split over the mesh, as its weights are placed there (see
    sharding/rules.py); decided once, at load. Does nothing on one device. Raises ValueError for an unknown wish."""
    if wish not in get_args(Wish):
        raise ValueError(f"experts are exchanged by {', '.join(get_args(Wish))}, not {wish!r}")
    if isinstance(model, Stages):
        for part, stage in zip(model.parts, stage_meshes(mesh), strict=True):
            split_experts(part, stage, wish)
        return
    if mesh.devices.size == 1:
        return
    for module in routed_experts(model):
        module.apply = experts_on_mesh(mesh, wish)
        if mesh.shape["data"] > 1:
            module.choose = route_on_mesh(mesh)


def routed_experts(model: Any) -> Iterator[RoutedExperts]:
    return (module for _, module in nnx.iter_modules(model) if isinstance(module, RoutedExperts))


def route_on_mesh(mesh: Mesh) -> Choose:
    """`route`, each data shard its own tokens: left to XLA, some backends gather them all for a top_k."""

    def choose(logits: Array, rule: RouterRule, choice_bias: Array | None) -> Routing:
        def local(logits: Array, choice_bias: Array | None) -> Routing:
            return route(logits, rule, choice_bias)

        in_specs = (_TOKENS, PartitionSpec())
        return jax.shard_map(local, mesh=mesh, in_specs=in_specs, out_specs=_TOKENS, check_vma=False)(
            logits, choice_bias
        )

    return choose


def log_ways(mesh: Mesh, wish: Wish, experts: int, top_k: int, buckets: Sequence[int]) -> None:
    """Says which way the experts of each step size go."""
    exchange = ExpertExchange(mesh, wish)
    for tokens in buckets:
        log.info("experts of steps of %d tokens are joined by %s", tokens, exchange.way(tokens, experts, top_k))


def experts_on_mesh(mesh: Mesh, wish: Wish = "auto") -> ApplyExperts:
    """`apply_experts` for weights that are split over `mesh`. What devices add up or send is in x's dtype."""
    exchange = ExpertExchange(mesh, wish)

    def apply(
        x: Array, routing: Routing, mlps: ExpertMLPs, num_experts: int, gate: Gate, matmul: GroupedMatmul
    ) -> tuple[Array, Array]:
        way = exchange.way(x.shape[0] // mesh.shape["data"], num_experts, routing.experts.shape[1])

        def local(x: Array, routing: Routing, mlps: ExpertMLPs) -> tuple[Array, Array]:
            if mlps.down_bias is not None:
                # Devices that share an expert's columns each add a part of its sum: one of them adds the bias.
                bias = jnp.where(lax.axis_index("tensor") == 0, mlps.down_bias, 0)
                mlps = mlps._replace(down_bias=bias)
            here = _LocalExperts(mlps, num_experts // math.prod(mesh.shape[axis] for axis in EXPERT_AXES), gate, matmul)
            if way == "sum":
                return _summed(x, routing, here, mesh)
            return _exchanged(x, routing, here, mesh, ragged=way == "ragged all-to-all")

        specs: tuple[Any, ...] = (
            _specs(mlps.gate_up, GATE_UP),
            _specs(mlps.down, DOWN),
            None if mlps.gate_up_bias is None else spec_of(("experts", None, "expert_mlp")),
            None if mlps.down_bias is None else spec_of(("experts", "model")),
        )
        weights = ExpertMLPs(*specs)
        split = jax.shard_map(
            local,
            mesh=mesh,
            in_specs=(_TOKENS, _TOKENS, weights),
            out_specs=(_TOKENS, spec_of(("experts",))),
            check_vma=False,
        )
        return split(x, routing, mlps)

    return apply


@dataclass(frozen=True, slots=True)
class _LocalExperts:
    """The experts of one device."""

    mlps: ExpertMLPs
    count: int
    gate: Gate
    matmul: GroupedMatmul

    def apply(self, x: Array, routing: Routing) -> tuple[Array, Array]:
        """`apply_experts`, with ids that count from the first of these."""
        return apply_experts(x, routing, self.mlps, self.count, self.gate, self.matmul)

    def of_rows(self, rows: Array, experts: Array) -> Array:
        """Row by row the output of the one expert that `experts` names; zeros where it names none of these."""
        weights = jnp.ones((rows.shape[0], 1), jnp.float32)
        return self.apply(rows, Routing(experts[:, None], weights))[0]


def _summed(x: Array, routing: Routing, here: _LocalExperts, mesh: Mesh) -> tuple[Array, Array]:
    over_data = mesh.shape["data"] > 1
    if over_data:
        x, routing = jax.tree.map(lambda part: lax.all_gather(part, "data", tiled=True), (x, routing))
    first = lax.axis_index(EXPERT_AXES) * here.count
    out, load = here.apply(x, routing._replace(experts=routing.experts - first))
    if over_data:
        out = lax.psum_scatter(out, "data", tiled=True)
    return lax.psum(out, MODEL_AXES), load


class _Sizes(NamedTuple):
    """How many rows go from where to where. Rows lie by expert at their source, and by source at their destination."""

    by_expert: Array  # [devices (sources), E] int32
    by_device: Array  # [sources, destinations] int32

    def sent_from(self, me: Array) -> Array:
        return self.by_device[me]

    def received_by(self, me: Array) -> Array:
        return self.by_device[:, me]

    def at_source(self) -> Array:
        """[sources, destinations]: where at a source the rows for a destination begin."""
        return jnp.cumsum(self.by_device, axis=1) - self.by_device

    def at_destination(self) -> Array:
        """[sources, destinations]: where at a destination the rows of a source begin."""
        return jnp.cumsum(self.by_device, axis=0) - self.by_device


def _exchanged(x: Array, routing: Routing, here: _LocalExperts, mesh: Mesh, *, ragged: bool) -> tuple[Array, Array]:
    """x [T, D] of a data shard, on each of its devices -> (the same with its experts' sums, load of this device's)."""
    over_expert, devices = mesh.shape["expert"], mesh.shape["data"] * mesh.shape["expert"]
    tokens, (x, routing) = x.shape[0], _share(x, routing, devices * here.count, over_expert)
    order = expert_order(routing.experts, devices * here.count)
    rows = x[order.pairs // routing.experts.shape[1]]
    if routing.input_weights is not None:
        rows = (rows * routing.input_weights.reshape(-1)[order.pairs][:, None]).astype(x.dtype)
    by_expert = lax.all_gather(order.group_sizes, EXPERT_AXES)
    sizes = _Sizes(by_expert, by_expert.reshape(devices, devices, here.count).sum(axis=2))
    there_and_back = _ragged if ragged else _padded
    out = there_and_back(rows, sizes, here, most=x.shape[0] * min(routing.experts.shape[1], here.count))
    # A pair without an expert has a place behind all rows: selected away.
    chosen = (order.places < order.group_sizes.sum()).reshape(routing.experts.shape)
    of_pairs = jnp.where(chosen[:, :, None], out[order.places].reshape(*routing.experts.shape, -1), 0)
    weights = jnp.where(chosen, routing.weights, 0)
    total = jnp.einsum("tkd,tk->td", of_pairs, weights, preferred_element_type=jnp.float32).astype(x.dtype)
    if mesh.shape["tensor"] > 1:
        total = lax.psum(total, "tensor")
    if over_expert > 1:
        total = lax.all_gather(total, "expert", tiled=True)
    first = lax.axis_index(EXPERT_AXES) * here.count
    load = lax.dynamic_slice_in_dim(by_expert.sum(axis=0), first, here.count)
    return total[:tokens], load


def _share(x: Array, routing: Routing, nobody: int, over: int) -> tuple[Array, Routing]:
    """This device's tokens of those that all of its data shard have; padding is routed to `nobody`."""
    if over == 1:
        return x, routing
    share = -(-x.shape[0] // over)
    begin, spare = lax.axis_index("expert") * share, over * share - x.shape[0]

    def part(values: Array, padding: int = 0) -> Array:
        padded = jnp.pad(values, ((0, spare), (0, 0)), constant_values=padding)
        return lax.dynamic_slice_in_dim(padded, begin, share)

    weights = routing.input_weights
    return part(x), Routing(
        part(routing.experts, nobody), part(routing.weights), None if weights is None else part(weights)
    )


def _ragged(rows: Array, sizes: _Sizes, here: _LocalExperts, most: int) -> Array:
    """rows [M, D], by expert -> what their experts make of them, in the same order. At most `most` rows go from one
    device to another."""
    me, devices = lax.axis_index(EXPERT_AXES), sizes.by_device.shape[0]
    sent, received = sizes.sent_from(me), sizes.received_by(me)
    source, destination = sizes.at_source(), sizes.at_destination()
    arrived = jnp.zeros((devices * most, rows.shape[1]), rows.dtype)
    arrived = lax.ragged_all_to_all(rows, arrived, source[me], sent, destination[me], received, axis_name=EXPERT_AXES)
    mine = lax.dynamic_slice_in_dim(sizes.by_expert, me * here.count, here.count, axis=1)
    ends = jnp.cumsum(mine.reshape(-1))
    place = jnp.arange(devices * most, dtype=jnp.int32)
    run = jnp.searchsorted(ends, place, side="right").astype(jnp.int32)
    made = here.of_rows(arrived, jnp.where(place < ends[-1], run % here.count, here.count))
    return lax.ragged_all_to_all(
        made, jnp.zeros_like(rows), destination[:, me], received, source[:, me], sent, axis_name=EXPERT_AXES
    )


def _padded(rows: Array, sizes: _Sizes, here: _LocalExperts, most: int) -> Array:
    """As `_ragged`, where every device sends `most` rows to each."""
    me, devices = lax.axis_index(EXPERT_AXES), sizes.by_device.shape[0]
    begin, place = sizes.at_source()[me], jnp.arange(most, dtype=jnp.int32)
    sent = rows[jnp.minimum(begin[:, None] + place, rows.shape[0] - 1)]
    arrived = lax.all_to_all(sent, EXPERT_AXES, 0, 0)
    mine = lax.dynamic_slice_in_dim(sizes.by_expert, me * here.count, here.count, axis=1)
    experts = jax.vmap(lambda ends: jnp.searchsorted(ends, place, side="right"))(jnp.cumsum(mine, axis=1))
    made = here.of_rows(arrived.reshape(-1, rows.shape[1]), experts.reshape(-1).astype(jnp.int32))
    back = lax.all_to_all(made.reshape(arrived.shape), EXPERT_AXES, 0, 0)
    every = jnp.arange(rows.shape[0], dtype=jnp.int32)
    to = jnp.minimum(jnp.searchsorted(begin + sizes.sent_from(me), every, side="right"), devices - 1)
    return back[to, jnp.clip(every - begin[to], 0, most - 1)]


def _all_reduce(devices: int) -> float:
    """Times its size that a device sends in an all-reduce."""
    return 2 * (devices - 1) / devices


def _specs(weights: ExpertWeights, names: tuple[str | None, ...]) -> Any:
    """Of weights, and of their scales: those of a whole column have no dimension of rows."""
    if not isinstance(weights, QuantizedExperts):
        return spec_of(names)
    whole_column = weights.scales.ndim < weights.values.ndim
    of_scales = (*names[:-2], names[-1]) if whole_column else names
    return QuantizedExperts(spec_of(names), spec_of(of_scales), weights.packed)  # pyright: ignore[reportArgumentType]
