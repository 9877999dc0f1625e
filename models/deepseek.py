"""DeepSeek V2 and V3 (arXiv 2405.04434, 2412.19437), and R1, which is V3.

Attention is latent: what is kept of a position is one row for all heads, [Z + R] numbers: a projection of the token
to Z, normed, and R that are turned by its position. Keys and values of a head are projections of the former, and are
never made: a query is taken through its head's key projection instead (to [Z], beside its own R turned numbers), and
what the weights sum up of the rows through the head's value projection.

The first layers are dense; the others have routed experts, and shared ones that every token passes.

    N  numbers of a query head that are not turned      R  those that are      W  numbers of a value head
    Q  rank of the queries                              Z  rank of keys and values
"""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from models.decoder import DENSE, Decoder, DecoderSizes, decoder_tensors, read_sizes
from models.fields import Fields
from models.hub import Places, Tensors
from models.interface import Attend, Cache, LayerForm, ModelShape
from models.layers import AttentionOutput, GatedMLP, RMSNorm, WeightInit, contract
from models.moe import GroupLimit, RoutedExperts, RouterRule, per_expert_tensors, read_experts
from models.rope import AnyRope, Rotations, read_rope, read_scaling
from pallas_kernels.ragged import AttentionOptions

architectures = ("DeepseekV3ForCausalLM", "DeepseekV2ForCausalLM")
LATENT_EPS = 1e-6  # of the norms on latent vectors, whatever rms_norm_eps is


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentSizes:
    """The numbers of latent attention, by their letters above."""

    q: int | None  # None: queries are one projection
    z: int
    n: int
    r: int
    w: int
    scale: float  # of the scores

    @property
    def letters(self) -> dict[str, int]:
        return {
            "Q": self.q or 0,
            "Z": self.z,
            "W": self.w,
            "C": self.n + self.r,
            "M": self.z + self.r,
            "U": self.n + self.w,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepseekConfig:
    sizes: DecoderSizes
    latent: LatentSizes
    rope: AnyRope
    experts: int
    expert_f: int
    shared_f: int  # of the shared experts together
    rule: RouterRule
    choice_bias: bool
    dense: tuple[int, ...]  # layers without experts
    extra_layers: int  # behind the last one, that predict several tokens at once: not needed


def parse(config: dict[str, Any]) -> DeepseekConfig:
    """Raises CheckpointError for a field that is missing or asks for what this family does not do."""
    fields = Fields(config)
    for name, only in {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "moe_layer_freq": 1}.items():
        fields.require(name, only)
    third = "DeepseekV2ForCausalLM" not in fields.strings("architectures")
    sizes = read_sizes(fields, head_dim=64)
    latent = _read_latent(fields)
    experts, rule = _read_third_rule(fields) if third else _read_second_rule(fields)
    dense = fields.integer("first_k_dense_replace", 3 if third else 0, least=0)
    if dense >= sizes.layers:
        raise fields.error("first_k_dense_replace", f"less than num_hidden_layers, {sizes.layers}")
    expert_f = fields.integer("moe_intermediate_size", 2048 if third else 1407)
    interleaved = fields.boolean("rope_interleave", True)
    return DeepseekConfig(
        sizes=replace(sizes, kv_heads=1, head_dim=latent.z + latent.r),
        latent=latent,
        rope=read_rope(fields, latent.r, sizes.max_position, interleaved=interleaved),
        experts=experts,
        expert_f=expert_f,
        shared_f=expert_f * fields.integer("n_shared_experts", 1 if third else 2),
        rule=rule,
        choice_bias=third,
        dense=tuple(range(dense)),
        extra_layers=fields.integer("num_nextn_predict_layers", 1, least=0) if third else 0,
    )


def _read_latent(fields: Fields) -> LatentSizes:
    n, r = fields.integer("qk_nope_head_dim", 128), fields.integer("qk_rope_head_dim", 64)
    return LatentSizes(
        q=None if fields.is_null("q_lora_rank") else fields.integer("q_lora_rank", 1536),
        z=fields.integer("kv_lora_rank", 512),
        n=n,
        r=r,
        w=fields.integer("v_head_dim", 128),
        scale=(n + r) ** -0.5 * _magnitude(fields) ** 2,
    )


def _magnitude(fields: Fields) -> float:
    """Of queries and keys each, where positions are stretched: mscale_all_dim weighs it."""
    scaling = read_scaling(fields)
    weight = scaling.number("mscale_all_dim", 0)
    if scaling.string("rope_type", scaling.string("type", "default")) == "default" or not weight:
        return 1.0
    factor = scaling.positive("factor")
    return 0.1 * weight * math.log(factor) + 1 if factor > 1 else 1.0


def _read_third_rule(fields: Fields) -> tuple[int, RouterRule]:
    fields.require("topk_method", "noaux_tc")
    fields.require("scoring_func", "sigmoid")
    experts, top_k = read_experts(fields, "n_routed_experts", experts=256, top_k=8)
    return experts, RouterRule(
        top_k=top_k,
        score="sigmoid",
        renormalize=fields.boolean("norm_topk_prob", True),
        scale=fields.positive("routed_scaling_factor", 2.5),
        limit=_read_limit(fields, experts, top_k, GroupLimit(groups=8, kept=4, score="best two")),
    )


def _read_second_rule(fields: Fields) -> tuple[int, RouterRule]:
    fields.require("scoring_func", "softmax")
    fields.require("norm_topk_prob", False)
    experts, top_k = read_experts(fields, "n_routed_experts", experts=64, top_k=None)
    method = fields.string("topk_method", "greedy")
    if method not in ("greedy", "group_limited_greedy"):
        raise fields.error("topk_method", "greedy or group_limited_greedy")
    limit = None
    if method == "group_limited_greedy":
        limit = _read_limit(fields, experts, top_k, GroupLimit(groups=1, kept=1, score="best"))
    return experts, RouterRule(top_k=top_k, scale=fields.positive("routed_scaling_factor", 1.0), limit=limit)


def _read_limit(fields: Fields, experts: int, top_k: int, default: GroupLimit) -> GroupLimit:
    groups, kept = fields.integer("n_group", default.groups), fields.integer("topk_group", default.kept)
    smallest = 2 if default.score == "best two" else 1
    if experts % groups or experts // groups < smallest:
        raise fields.error("n_group", f"a divisor of n_routed_experts, {experts}, that leaves {smallest} in a group")
    if kept > groups or kept * (experts // groups) < top_k:
        raise fields.error("topk_group", f"at most n_group, {groups}, and enough for {top_k} experts a token")
    return replace(default, groups=groups, kept=kept)


def shape(config: DeepseekConfig) -> ModelShape:
    return replace(
        config.sizes.shape(),
        value_dim=config.latent.z,
        experts=config.experts,
        experts_per_token=config.rule.top_k,
    )


def build(config: DeepseekConfig, dtype: Any, seed: int | None = 0, *, layers: LayerForm = "stacked") -> Decoder:
    """Random weights; without a seed, only their shapes."""
    return Decoder(
        WeightInit(dtype, seed, layers=layers),
        config.sizes,
        config.rope,
        partial(Block, config),
        dense=config.dense,
        dense_block=partial(Block, config, dense=True),
    )


class LatentQueries(nnx.Module):
    """From a token to its query heads [H, N + R], by way of a normed vector [Q] or straight."""

    def __init__(self, init: WeightInit, d: int, h: int, sizes: LatentSizes) -> None:
        width = d if sizes.q is None else sizes.q
        self.down = None if sizes.q is None else init.weight((d, sizes.q), ("model", None), d, summed=(0,))
        self.norm = None if sizes.q is None else RMSNorm(init, sizes.q, LATENT_EPS, axis=None)
        self.up = init.weight((width, h, sizes.n + sizes.r), (None, "heads", None), width, summed=(0,))

    def __call__(self, x: Array) -> Array:  # [T, D] -> [T, H, N + R]
        if self.down is not None and self.norm is not None:
            x = self.norm(contract("td,dq->tq", x, self.down[...]))
        return contract("tq,qhc->thc", x, self.up[...])


class LatentAttention(nnx.Module):
    def __init__(self, init: WeightInit, d: int, h: int, sizes: LatentSizes) -> None:
        self.queries = LatentQueries(init, d, h, sizes)
        self.down = init.weight((d, sizes.z + sizes.r), ("model", None), d, summed=(0,))
        self.norm = RMSNorm(init, sizes.z, LATENT_EPS, axis=None)
        keys_values = (h, sizes.n + sizes.w, sizes.z)
        self.up = init.weight(keys_values, ("heads", None, None), fan_in=sizes.z, summed=(2,))
        self.output = AttentionOutput(init, h, sizes.w, d, bias=False)
        self.options = AttentionOptions(scale=sizes.scale, value_dim=sizes.z)
        self.sizes = sizes

    def __call__(
        self, x: Array, cache: Cache, layer: Array | int, rotations: Rotations, attend: Attend
    ) -> tuple[Array, Cache]:
        """x [T, D] -> ([T, D], cache)."""
        z, n, turn = self.sizes.z, self.sizes.n, rotations.of(layer)
        up = self.up[...]
        q = self.queries(x)
        latent_q = contract("thn,hnz->thz", q[..., :n], up[:, :n])
        kept = contract("td,dm->tm", x, self.down[...])
        row = jnp.concatenate([self.norm(kept[:, :z]), turn(kept[:, z:])], axis=-1)
        q = jnp.concatenate([latent_q, turn(q[..., n:])], axis=-1)
        cache, out = attend(cache, layer, q, row[:, None], None, self.options)
        return self.output(contract("thz,hwz->thw", out, up[:, n:])), cache


class SharedAndRouted(nnx.Module):
    """Routed experts, and an MLP that every token passes."""

    def __init__(self, config: DeepseekConfig, init: WeightInit) -> None:
        d = config.sizes.d
        self.routed = RoutedExperts(
            init, config.experts, d, config.expert_f, config.rule, choice_bias=config.choice_bias
        )
        self.shared = GatedMLP(init, d, config.shared_f, jax.nn.silu)

    def __call__(self, x: Array) -> Array:  # [T, D] -> [T, D]
        return self.routed(x) + self.shared(x)


class Block(nnx.Module):
    def __init__(self, config: DeepseekConfig, init: WeightInit, *, dense: bool = False) -> None:
        s = config.sizes
        self.attention_norm = RMSNorm(init, s.d, s.eps)
        self.attention = LatentAttention(init, s.d, s.heads, config.latent)
        self.mlp_norm = RMSNorm(init, s.d, s.eps)
        self.mlp = GatedMLP(init, s.d, s.f, jax.nn.silu) if dense else SharedAndRouted(config, init)

    def __call__(
        self, x: Array, cache: Cache, layer: Array | int, rotations: Rotations, attend: Attend
    ) -> tuple[Array, Cache]:
        out, cache = self.attention(self.attention_norm(x), cache, layer, rotations, attend)
        x += out
        return x + self.mlp(self.mlp_norm(x)), cache


def tensors(config: DeepseekConfig) -> Tensors:
    """The hub's names for the weights above."""

    def of_block(at: str, block: Places) -> Tensors:
        block = block.with_sizes(**config.latent.letters)
        return {
            f"{at}input_layernorm.weight": block.put("attention_norm.scale", "D"),
            f"{at}post_attention_layernorm.weight": block.put("mlp_norm.scale", "D"),
            **_attention_tensors(config.latent, f"{at}self_attn.", block),
            **of_mlp(f"{at}mlp.", block),
        }

    def of_mlp(at: str, block: Places) -> Tensors:
        if block.stack == DENSE:
            return block.gated_mlp(at, "mlp", bias=False)
        experts = block.with_sizes(E=config.experts, F=config.expert_f)
        bias = experts.put("mlp.routed.choice_bias", "E")
        return {
            f"{at}gate.weight": experts.put("mlp.routed.router", "ED -> DE"),
            **({f"{at}gate.e_score_correction_bias": bias} if config.choice_bias else {}),
            **per_expert_tensors(experts, at, "mlp.routed"),
            **block.with_sizes(F=config.shared_f).gated_mlp(f"{at}shared_experts.", "mlp.shared", bias=False),
        }

    table = decoder_tensors(config.sizes, of_block, config.dense)
    for layer in range(config.sizes.layers, config.sizes.layers + config.extra_layers):
        table |= _unneeded(
            f"model.layers.{layer}.", of_block(f"model.layers.{layer}.", Places(sizes=config.sizes.places().sizes))
        )
    return table


def _attention_tensors(sizes: LatentSizes, at: str, block: Places) -> Tensors:
    table: Tensors = {
        f"{at}kv_a_proj_with_mqa.weight": block.put("attention.down", "MD -> DM"),
        f"{at}kv_a_layernorm.weight": block.put("attention.norm.scale", "Z"),
        f"{at}kv_b_proj.weight": block.put("attention.up", "(HU)Z -> HUZ"),
        f"{at}o_proj.weight": block.put("attention.output.weight", "D(HW) -> HWD"),
    }
    if sizes.q is None:
        return table | {f"{at}q_proj.weight": block.put("attention.queries.up", "(HC)D -> DHC")}
    return table | {
        f"{at}q_a_proj.weight": block.put("attention.queries.down", "QD -> DQ"),
        f"{at}q_a_layernorm.weight": block.put("attention.queries.norm.scale", "Q"),
        f"{at}q_b_proj.weight": block.put("attention.queries.up", "(HC)Q -> QHC"),
    }


def _unneeded(at: str, block: Tensors) -> Tensors:
    """A layer that predicts the token after the next one: a block, and what joins it to the others."""
    own = ("embed_tokens", "enorm", "hnorm", "eh_proj", "shared_head.norm", "shared_head.head")
    return dict.fromkeys(block) | dict.fromkeys(f"{at}{name}.weight" for name in own)
