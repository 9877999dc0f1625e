"""Mixture of experts: a router chooses top_k experts for each token, and a gated MLP of each runs on its tokens.

    logits [T, E] -> scores -> the top_k experts of each token and their weights
    rows, one for each (token, expert), sorted by expert -> grouped matmul gate and up -> activation -> grouped matmul
    down -> back in the order of tokens -> weighted sum

Nothing has a capacity and nothing is dropped: any T and any imbalance give the same numbers. How a family chooses is
a `RouterRule`, not code of this file.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array, lax

from models.fields import Fields
from models.hub import Places, Tensors
from models.layers import WeightInit
from models.quantized_array import QuantizedArray
from pallas_kernels.grouped import ExpertWeights, GroupedMatmul, QuantizedExperts
from pallas_kernels.reference.grouped_matmul import grouped_matmul as reference_matmul

LEAST_SUM = 1e-20  # of sigmoid scores, which may all underflow

Gate = Callable[[Array, Array], Array]
"""(gate, up) -> what the down projection takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLimit:
    """Only experts of the best `kept` of `groups` equal groups may be chosen (DeepSeek-V2, arXiv 2405.04434)."""

    groups: int
    kept: int
    score: Literal["best", "best two"]  # of a group: its best expert's score, or the sum of its best two


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterRule:
    """How experts are chosen and weighted. Scores are float32.

    Mixtral            softmax, renormalize
    Qwen3-MoE          softmax, renormalize as norm_topk_prob says
    gpt-oss            softmax, renormalize: the softmax over the chosen logits alone is the same numbers
    DeepSeek-V2        softmax, scale, limit by the best expert of a group
    DeepSeek-V3        sigmoid, renormalize, scale, limit by the best two, and a bias for the choice
    Llama 4            sigmoid, on the input
    """

    top_k: int
    score: Literal["softmax", "sigmoid"] = "softmax"
    renormalize: bool = False  # the chosen weights sum to 1, before `scale`
    scale: float = 1.0
    limit: GroupLimit | None = None
    on_input: bool = False  # weights are on what goes into an expert, and not on what comes out


class Routing(NamedTuple):
    experts: Array  # [T, top_k] int32
    weights: Array  # [T, top_k] float32
    input_weights: Array | None = None  # [T, top_k] float32


def route(logits: Array, rule: RouterRule, choice_bias: Array | None = None) -> Routing:
    """logits [T, E] -> each token's experts, the best first. `choice_bias` [E] sways the choice and no weight."""
    wide = logits.astype(jnp.float32)
    scores = jax.nn.softmax(wide, axis=-1) if rule.score == "softmax" else jax.nn.sigmoid(wide)
    order = scores if choice_bias is None else scores + choice_bias.astype(jnp.float32)
    if rule.limit is not None:
        order = _within_best_groups(order, rule.limit)
    _, experts = lax.top_k(order, rule.top_k)
    weights = jnp.take_along_axis(scores, experts, axis=-1)
    if rule.renormalize:
        weights /= jnp.maximum(weights.sum(axis=-1, keepdims=True), LEAST_SUM)
    weights *= rule.scale
    return Routing(experts, jnp.ones_like(weights), weights) if rule.on_input else Routing(experts, weights)


def _within_best_groups(order: Array, limit: GroupLimit) -> Array:
    """Scores [T, E] with -inf for experts outside of the best groups."""
    grouped = order.reshape(order.shape[0], limit.groups, -1)
    of_group = lax.top_k(grouped, 1 if limit.score == "best" else 2)[0].sum(axis=-1)
    _, kept = lax.top_k(of_group, limit.kept)
    may = jax.nn.one_hot(kept, limit.groups, dtype=jnp.bool_).any(axis=1)
    return jnp.where(may[:, :, None], grouped, -jnp.inf).reshape(order.shape)


def swiglu(gate: Array, up: Array) -> Array:
    return jax.nn.silu(gate) * up


@dataclass(frozen=True, slots=True, kw_only=True)
class ClippedSwiglu:
    """gpt-oss: gate * sigmoid(alpha * gate) * (up + 1), with gate cut at `limit` and up at both ends."""

    limit: float = 7.0
    alpha: float = 1.702

    def __call__(self, gate: Array, up: Array) -> Array:
        gate = jnp.minimum(gate, self.limit)
        return gate * jax.nn.sigmoid(self.alpha * gate) * (jnp.clip(up, -self.limit, self.limit) + 1)


class ExpertMLPs(NamedTuple):
    """The weights of the experts that are here: E of them, or those of one device."""

    gate_up: ExpertWeights  # [E, 2, D, F]
    down: ExpertWeights  # [E, F, D]
    gate_up_bias: Array | None = None  # [E, 2, F]
    down_bias: Array | None = None  # [E, D]


class ExpertOrder(NamedTuple):
    """The (token, choice) pairs sorted by expert; those of experts that are not here come last."""

    pairs: Array  # [T * top_k] int32: the pair in each place
    places: Array  # [T * top_k] int32: the place of each pair
    experts: Array  # [T * top_k] int32: of each place; E where it is not here
    group_sizes: Array  # [E] int32


def expert_order(experts: Array, num_experts: int) -> ExpertOrder:
    """experts [T, top_k]; an id outside of 0..num_experts - 1 is one that is not here."""
    flat = experts.reshape(-1)
    flat = jnp.where((flat >= 0) & (flat < num_experts), flat, num_experts).astype(jnp.int32)
    pairs = jnp.argsort(flat, stable=True).astype(jnp.int32)
    every = jnp.arange(flat.shape[0], dtype=jnp.int32)
    places = jnp.zeros_like(flat).at[pairs].set(every, unique_indices=True)
    return ExpertOrder(pairs, places, flat[pairs], jnp.bincount(flat, length=num_experts + 1)[:-1].astype(jnp.int32))


def apply_experts(
    x: Array, routing: Routing, mlps: ExpertMLPs, num_experts: int, gate: Gate, matmul: GroupedMatmul
) -> tuple[Array, Array]:
    """(sum over each token's experts of weight * MLP(x) [T, D], tokens of each expert [num_experts] int32).

    Where only some experts are here, ids count from the first of them, and the sum is over those that are here: the
    sums of all devices add up to the whole. x [T, D]; the sum is float32 until the end, and in x's dtype.
    """
    tokens, top_k = routing.experts.shape
    order = expert_order(routing.experts, num_experts)
    rows = x[order.pairs // top_k]
    if routing.input_weights is not None:
        rows = (rows * routing.input_weights.reshape(-1)[order.pairs][:, None]).astype(x.dtype)
    fused = matmul(rows, mlps.gate_up, order.group_sizes)
    if mlps.gate_up_bias is not None:
        fused += _of_experts(mlps.gate_up_bias, order.experts).reshape(fused.shape)
    half = fused.shape[1] // 2
    out = matmul(gate(fused[:, :half], fused[:, half:]), mlps.down, order.group_sizes)
    if mlps.down_bias is not None:
        out += _of_experts(mlps.down_bias, order.experts)
    # A pair without an expert has a place in the undefined rows: selected away, as NaN times zero is NaN.
    here = (order.places < order.group_sizes.sum()).reshape(tokens, top_k)
    chosen = jnp.where(here[:, :, None], out[order.places].reshape(tokens, top_k, -1), 0)
    weights = jnp.where(here, routing.weights, 0)
    total = jnp.einsum("tkd,tk->td", chosen, weights, preferred_element_type=jnp.float32)
    return total.astype(x.dtype), order.group_sizes


class ApplyExperts(Protocol):
    """`apply_experts`, or what does the same where the experts are split over devices (see split_experts.py)."""

    def __call__(
        self, x: Array, routing: Routing, mlps: ExpertMLPs, num_experts: int, gate: Gate, matmul: GroupedMatmul
    ) -> tuple[Array, Array]: ...


Choose = Callable[[Array, RouterRule, Array | None], Routing]
"""`route`, or what does the same where tokens are split over devices."""


def _of_experts(bias: Array, experts: Array) -> Array:
    """bias [E, ...] for the expert of each row; any for a row that has none."""
    return bias[jnp.minimum(experts, bias.shape[0] - 1)]


WatchLoad = Callable[[Any], None]  # is told the tokens of each expert [E] of each layer and step, padding included


class RoutedExperts(nnx.Module):
    """The layer: a router and E gated MLPs [D -> F -> D]."""

    def __init__(
        self,
        init: WeightInit,
        e: int,
        d: int,
        f: int,
        rule: RouterRule,
        *,
        gate: Gate = swiglu,
        bias: bool = False,  # of the experts' projections
        router_bias: bool = False,  # added to the logits
        choice_bias: bool = False,  # sways the choice and no weight (DeepSeek-V3's e_score_correction_bias)
    ) -> None:
        _check_rule(rule, e)
        self.router = init.weight((d, e), ("model", None), fan_in=d)
        self.router_bias = init.zeros((e,), (None,)) if router_bias else None
        # Its rounding would choose other experts.
        self.choice_bias = init.zeros((e,), (None,), jnp.float32) if choice_bias else None
        self.gate_up = init.weight((e, 2, d, f), ("experts", None, "model", "expert_mlp"), fan_in=d, summed=(2,))
        self.down = init.weight((e, f, d), ("experts", "expert_mlp", "model"), fan_in=f, summed=(1,))
        self.gate_up_bias = init.zeros((e, 2, f), ("experts", None, "expert_mlp")) if bias else None
        self.down_bias = init.zeros((e, d), ("experts", "model")) if bias else None
        self.rule = rule
        self.gate = gate
        self.matmul: GroupedMatmul = reference_matmul
        self.apply: ApplyExperts = apply_experts
        self.choose: Choose = route
        self.num_experts = e
        self.watch: WatchLoad | None = None

    def __call__(self, x: Array) -> Array:  # [T, D] -> [T, D]
        out, load = self.with_load(x)
        if self.watch is not None:
            jax.debug.callback(self.watch, load)
        return out

    def with_load(self, x: Array, real: Array | None = None) -> tuple[Array, Array]:
        """x [T, D] -> (out [T, D], tokens of each expert [E] int32).

        A token that `real` [T] bool does not name goes to no expert: it is not counted, costs nothing, and gets zeros.
        Without it the padding of a bucket is routed like any token.
        """
        routing = self.routing(x)
        if real is not None:
            routing = routing._replace(experts=jnp.where(real[:, None], routing.experts, self.num_experts))
        return self.apply(x, routing, self.mlps(), self.num_experts, self.gate, self.matmul)

    def routing(self, x: Array) -> Routing:
        """Each token's experts and their weights; logits are summed and kept in float32."""
        logits = jnp.einsum("td,de->te", x, self.router[...], preferred_element_type=jnp.float32)
        if self.router_bias is not None:
            logits += self.router_bias[...]
        return self.choose(logits, self.rule, None if self.choice_bias is None else self.choice_bias[...])

    def mlps(self) -> ExpertMLPs:
        return ExpertMLPs(
            expert_weights(self.gate_up[...]),
            expert_weights(self.down[...]),
            None if self.gate_up_bias is None else self.gate_up_bias[...],
            None if self.down_bias is None else self.down_bias[...],
        )


def expert_weights(weights: Array | QuantizedArray) -> ExpertWeights:
    """As grouped matmuls take them."""
    if not isinstance(weights, QuantizedArray):
        return weights
    whole_column = weights.form.group is None
    kind = weights.form.kind
    packed = kind if kind == "int4" or kind == "fp4" else None
    return QuantizedExperts(weights.values, weights.scales[..., 0, :] if whole_column else weights.scales, packed)


def use_grouped_matmul(model: Any, matmul: GroupedMatmul) -> None:
    """From here on every RoutedExperts of the model multiplies with that body; decided once, at load."""
    for _, module in nnx.iter_modules(model):
        if isinstance(module, RoutedExperts):
            module.matmul = matmul


def watch_load(model: Any, watch: WatchLoad) -> None:
    """From here on `watch` is told of every layer's load, by the host: for measuring, not for serving."""
    for _, module in nnx.iter_modules(model):
        if isinstance(module, RoutedExperts):
            module.watch = watch


def _check_rule(rule: RouterRule, e: int) -> None:
    if not 1 <= rule.top_k <= e:
        raise ValueError(f"top_k {rule.top_k} is not within 1..{e} experts")
    if rule.limit is None:
        return
    groups, kept = rule.limit.groups, rule.limit.kept
    if e % groups or not 1 <= kept <= groups or kept * (e // groups) < rule.top_k:
        raise ValueError(f"{rule.top_k} of {e} experts cannot be chosen from {kept} of {groups} groups")
    if rule.limit.score == "best two" and e // groups < 2:
        raise ValueError(f"{groups} groups of {e} experts have no best two")


def read_experts(fields: Fields, named: str, *, experts: int, top_k: int | None) -> tuple[int, int]:
    """(experts of a layer, of a token); the arguments are what the hub assumes. Raises CheckpointError."""
    count, chosen = fields.integer(named, experts), fields.integer("num_experts_per_tok", top_k)
    if chosen > count:
        raise fields.error("num_experts_per_tok", f"at most {named}, {count}")
    return count, chosen


def per_expert_tensors(
    at: Places, prefix: str, leaf: str, names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
) -> Tensors:
    """Weights in one tensor for each expert, as "{prefix}experts.7.gate_proj.weight": [F, D], [F, D] and [D, F].

    `at` has the sizes D, F (of an expert) and E. Mixtral's names are ("w1", "w3", "w2").
    """
    gate, up, down = names
    table: Tensors = {}
    for e in range(at.sizes["E"]):
        table[f"{prefix}experts.{e}.{gate}.weight"] = at.put(f"{leaf}.gate_up", "FD -> DF", (e, 0))
        table[f"{prefix}experts.{e}.{up}.weight"] = at.put(f"{leaf}.gate_up", "FD -> DF", (e, 1))
        table[f"{prefix}experts.{e}.{down}.weight"] = at.put(f"{leaf}.down", "DF -> FD", (e,))
    return table


def interleaved_tensors(at: Places, prefix: str, leaf: str, *, packed: bool = False) -> Tensors:
    """gpt-oss: all experts in one tensor, the gate in the even columns and the up in the odd ones.

    Packed ones (see mxfp4.py) lie transposed, as what shares a scale is summed over.
    """
    wide = at.with_sizes(N=2)
    layouts = ("E(FN)D -> ENDF", "EDF -> EFD") if packed else ("ED(FN) -> ENDF", "EFD")
    return {
        f"{prefix}experts.gate_up_proj": wide.put(f"{leaf}.gate_up", layouts[0], packed=packed),
        f"{prefix}experts.gate_up_proj_bias": wide.put(f"{leaf}.gate_up_bias", "E(FN) -> ENF"),
        f"{prefix}experts.down_proj": wide.put(f"{leaf}.down", layouts[1], packed=packed),
        f"{prefix}experts.down_proj_bias": wide.put(f"{leaf}.down_bias", "ED"),
    }
