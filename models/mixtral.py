"""Mixtral (Jiang et al., arXiv 2401.04088): Mistral's blocks with routed experts in place of the MLP."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from flax import nnx
from jax import Array

from models.decoder import Decoder, DecoderSizes, decoder_tensors, read_sizes
from models.fields import Fields
from models.hub import Places, Tensors
from models.interface import Attend, Cache, LayerForm, ModelShape
from models.layers import AttentionOutput, GroupedQKV, RMSNorm, WeightInit
from models.moe import RoutedExperts, RouterRule, per_expert_tensors, read_experts
from models.rope import AnyRope, Rotations, read_rope
from models.windows import Windows
from pallas_kernels.ragged import AttentionOptions

architectures = ("MixtralForCausalLM",)


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtralConfig:
    sizes: DecoderSizes
    rope: AnyRope
    windows: Windows
    experts: int
    top_k: int


def parse(config: dict[str, Any]) -> MixtralConfig:
    """Raises CheckpointError for a field that is missing or asks for what this family does not do."""
    fields = Fields(config)
    fields.require("hidden_act", "silu")
    fields.require("layer_types", None)
    sizes = read_sizes(fields, eps=1e-5)
    window = fields.integer("sliding_window") if "sliding_window" in fields else None
    experts, top_k = read_experts(fields, "num_local_experts", experts=8, top_k=2)
    return MixtralConfig(
        sizes=sizes,
        rope=read_rope(fields, sizes.head_dim, sizes.max_position, theta=1_000_000.0),
        windows=Windows((window,) * sizes.layers),
        experts=experts,
        top_k=top_k,
    )


def shape(config: MixtralConfig) -> ModelShape:
    return replace(config.sizes.shape(), experts=config.experts, experts_per_token=config.top_k)


def build(config: MixtralConfig, dtype: Any, seed: int | None = 0, *, layers: LayerForm = "stacked") -> Decoder:
    """Random weights; without a seed, only their shapes."""
    return Decoder(WeightInit(dtype, seed, layers=layers), config.sizes, config.rope, partial(Block, config))


class Block(nnx.Module):
    def __init__(self, config: MixtralConfig, init: WeightInit) -> None:
        s = config.sizes
        self.attention_norm = RMSNorm(init, s.d, s.eps)
        self.qkv = GroupedQKV(init, s.d, s.kv_heads, s.group, s.head_dim, bias=False)
        self.output = AttentionOutput(init, s.heads, s.head_dim, s.d, bias=False)
        self.mlp_norm = RMSNorm(init, s.d, s.eps)
        self.mlp = RoutedExperts(init, config.experts, s.d, s.f, RouterRule(top_k=config.top_k, renormalize=True))
        self.options = AttentionOptions(scale=s.head_dim**-0.5)
        self.windows = config.windows

    def __call__(
        self, x: Array, cache: Cache, layer: Array | int, rotations: Rotations, attend: Attend
    ) -> tuple[Array, Cache]:
        turn = rotations.of(layer)
        q, k, v = self.qkv(self.attention_norm(x))
        cache, out = attend(cache, layer, turn(q), turn(k), v, self.options, window=self.windows.of(layer))
        x += self.output(out)
        return x + self.mlp(self.mlp_norm(x)), cache


def tensors(config: MixtralConfig) -> Tensors:
    """The hub's names for the weights above."""

    def of_block(at: str, block: Places) -> Tensors:
        block = block.with_sizes(E=config.experts)
        return {
            f"{at}input_layernorm.weight": block.put("attention_norm.scale", "D"),
            f"{at}post_attention_layernorm.weight": block.put("mlp_norm.scale", "D"),
            **block.grouped_qkv(f"{at}self_attn.", "qkv", bias=False),
            **block.attention_output(f"{at}self_attn.", "output", bias=False),
            f"{at}block_sparse_moe.gate.weight": block.put("mlp.router", "ED -> DE"),
            **per_expert_tensors(block, f"{at}block_sparse_moe.", "mlp", ("w1", "w3", "w2")),
        }

    return decoder_tensors(config.sizes, of_block)
