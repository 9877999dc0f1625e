"""Qwen3-MoE (Qwen team, arXiv 2505.09388): Qwen3's blocks with routed experts; some layers may stay dense."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
from flax import nnx
from jax import Array

from models.decoder import DENSE, Decoder, DecoderSizes, decoder_tensors, read_sizes
from models.fields import Fields
from models.hub import Places, Tensors
from models.interface import Attend, Cache, LayerForm, ModelShape
from models.layers import AttentionOutput, GatedMLP, GroupedQKV, RMSNorm, WeightInit
from models.moe import RoutedExperts, RouterRule, per_expert_tensors, read_experts
from models.rope import AnyRope, Rotations, read_rope
from pallas_kernels.ragged import AttentionOptions

architectures = ("Qwen3MoeForCausalLM",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwen3MoeConfig:
    sizes: DecoderSizes
    rope: AnyRope
    attention_bias: bool
    experts: int
    expert_f: int
    rule: RouterRule
    dense: tuple[int, ...]  # layers without experts


def parse(config: dict[str, Any]) -> Qwen3MoeConfig:
    """Raises CheckpointError for a field that is missing or asks for what this family does not do."""
    fields = Fields(config)
    fields.require("hidden_act", "silu")
    # No released checkpoint slides. max_window_layers means nothing unless this one is true and there is a window.
    if not fields.is_null("sliding_window"):
        fields.require("use_sliding_window", False)
    sizes = read_sizes(fields)
    # Newer files of the hub's library call it as Mixtral's do.
    named = "num_local_experts" if "num_local_experts" in fields else "num_experts"
    experts, top_k = read_experts(fields, named, experts=128, top_k=8)
    return Qwen3MoeConfig(
        sizes=sizes,
        rope=read_rope(fields, sizes.head_dim, sizes.max_position),
        attention_bias=fields.boolean("attention_bias", False),
        experts=experts,
        expert_f=fields.integer("moe_intermediate_size", 768),
        rule=RouterRule(top_k=top_k, renormalize=fields.boolean("norm_topk_prob", False)),
        dense=_dense_layers(fields, sizes.layers),
    )


def _dense_layers(fields: Fields, layers: int) -> tuple[int, ...]:
    """All but every decoder_sparse_step-th, and those that mlp_only_layers names."""
    step, named = fields.integer("decoder_sparse_step", 1), fields.integers("mlp_only_layers")
    dense = tuple(layer for layer in range(layers) if layer in named or (layer + 1) % step)
    if len(dense) == layers:
        raise fields.error("mlp_only_layers", "a list that leaves a layer with experts")
    return dense


def shape(config: Qwen3MoeConfig) -> ModelShape:
    return replace(config.sizes.shape(), experts=config.experts, experts_per_token=config.rule.top_k)


def build(config: Qwen3MoeConfig, dtype: Any, seed: int | None = 0, *, layers: LayerForm = "stacked") -> Decoder:
    """Random weights; without a seed, only their shapes."""
    return Decoder(
        WeightInit(dtype, seed, layers=layers),
        config.sizes,
        config.rope,
        partial(Block, config),
        dense=config.dense,
        dense_block=partial(Block, config, dense=True),
    )


class Block(nnx.Module):
    def __init__(self, config: Qwen3MoeConfig, init: WeightInit, *, dense: bool = False) -> None:
        s = config.sizes
        self.attention_norm = RMSNorm(init, s.d, s.eps)
        self.qkv = GroupedQKV(init, s.d, s.kv_heads, s.group, s.head_dim, bias=config.attention_bias)
        self.q_norm = RMSNorm(init, s.head_dim, s.eps, axis=None)
        self.k_norm = RMSNorm(init, s.head_dim, s.eps, axis=None)
        self.output = AttentionOutput(init, s.heads, s.head_dim, s.d, bias=config.attention_bias)
        self.mlp_norm = RMSNorm(init, s.d, s.eps)
        if dense:
            self.mlp = GatedMLP(init, s.d, s.f, jax.nn.silu)
        else:
            self.mlp = RoutedExperts(init, config.experts, s.d, config.expert_f, config.rule)
        self.options = AttentionOptions(scale=s.head_dim**-0.5)

    def __call__(
        self, x: Array, cache: Cache, layer: Array | int, rotations: Rotations, attend: Attend
    ) -> tuple[Array, Cache]:
        turn = rotations.of(layer)
        q, k, v = self.qkv(self.attention_norm(x))
        q, k = turn(self.q_norm(q)), turn(self.k_norm(k))
        cache, out = attend(cache, layer, q, k, v, self.options)
        x += self.output(out)
        return x + self.mlp(self.mlp_norm(x)), cache


def tensors(config: Qwen3MoeConfig) -> Tensors:
    """The hub's names for the weights above."""

    def of_block(at: str, block: Places) -> Tensors:
        return {
            f"{at}input_layernorm.weight": block.put("attention_norm.scale", "D"),
            f"{at}post_attention_layernorm.weight": block.put("mlp_norm.scale", "D"),
            f"{at}self_attn.q_norm.weight": block.put("q_norm.scale", "C"),
            f"{at}self_attn.k_norm.weight": block.put("k_norm.scale", "C"),
            **block.grouped_qkv(f"{at}self_attn.", "qkv", bias=config.attention_bias),
            **block.attention_output(f"{at}self_attn.", "output", bias=config.attention_bias),
            **of_mlp(f"{at}mlp.", block),
        }

    def of_mlp(at: str, block: Places) -> Tensors:
        if block.stack == DENSE:
            return block.gated_mlp(at, "mlp", bias=False)
        experts = block.with_sizes(E=config.experts, F=config.expert_f)
        return {
            f"{at}gate.weight": experts.put("mlp.router", "ED -> DE"),
            **per_expert_tensors(experts, at, "mlp"),
        }

    return decoder_tensors(config.sizes, of_block, config.dense)
