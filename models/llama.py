"""Llama 2 and 3.x (Touvron et al., arXiv 2307.09288; Dubey et al., arXiv 2407.21783).

Pre-norm blocks of grouped-query attention with rotary positions and a SiLU-gated MLP; tied or separate output weights;
biases on the projections where the checkpoint says so.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
from flax import nnx
from jax import Array

from models.decoder import Decoder, DecoderSizes, decoder_tensors, read_sizes
from models.fields import Fields
from models.hub import Places, Tensors
from models.interface import Attend, Cache, LayerForm, ModelShape
from models.layers import AttentionOutput, GatedMLP, GroupedQKV, RMSNorm, WeightInit
from models.rope import AnyRope, Rotations, read_rope
from pallas_kernels.ragged import AttentionOptions

architectures = ("LlamaForCausalLM",)
gives_states = True


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaConfig:
    sizes: DecoderSizes
    rope: AnyRope
    attention_bias: bool
    mlp_bias: bool


def parse(config: dict[str, Any]) -> LlamaConfig:
    """Raises CheckpointError for a field that is missing or asks for what this family does not do."""
    fields = Fields(config)
    fields.require("hidden_act", "silu")
    sizes = read_sizes(fields)
    return LlamaConfig(
        sizes=sizes,
        rope=read_rope(fields, sizes.head_dim, sizes.max_position),
        attention_bias=fields.boolean("attention_bias", False),
        mlp_bias=fields.boolean("mlp_bias", False),
    )


def shape(config: LlamaConfig) -> ModelShape:
    return config.sizes.shape()


def build(config: LlamaConfig, dtype: Any, seed: int | None = 0, *, layers: LayerForm = "stacked") -> Decoder:
    """Random weights; without a seed, only their shapes."""
    return Decoder(WeightInit(dtype, seed, layers=layers), config.sizes, config.rope, partial(Block, config))


class Block(nnx.Module):
    def __init__(self, config: LlamaConfig, init: WeightInit) -> None:
        s = config.sizes
        self.attention_norm = RMSNorm(init, s.d, s.eps)
        self.qkv = GroupedQKV(init, s.d, s.kv_heads, s.group, s.head_dim, bias=config.attention_bias)
        self.output = AttentionOutput(init, s.heads, s.head_dim, s.d, bias=config.attention_bias)
        self.mlp_norm = RMSNorm(init, s.d, s.eps)
        self.mlp = GatedMLP(init, s.d, s.f, jax.nn.silu, bias=config.mlp_bias)
        self.options = AttentionOptions(scale=s.head_dim**-0.5)

    def __call__(
        self, x: Array, cache: Cache, layer: Array | int, rotations: Rotations, attend: Attend
    ) -> tuple[Array, Cache]:
        turn = rotations.of(layer)
        q, k, v = self.qkv(self.attention_norm(x))
        cache, out = attend(cache, layer, turn(q), turn(k), v, self.options)
        x += self.output(out)
        return x + self.mlp(self.mlp_norm(x)), cache


def tensors(config: LlamaConfig) -> Tensors:
    """The hub's names for the weights above."""

    def of_block(at: str, block: Places) -> Tensors:
        return {
            f"{at}input_layernorm.weight": block.put("attention_norm.scale", "D"),
            f"{at}post_attention_layernorm.weight": block.put("mlp_norm.scale", "D"),
            **block.grouped_qkv(f"{at}self_attn.", "qkv", bias=config.attention_bias),
            **block.attention_output(f"{at}self_attn.", "output", bias=config.attention_bias),
            **block.gated_mlp(f"{at}mlp.", "mlp", bias=config.mlp_bias),
        }

    return decoder_tensors(config.sizes, of_block)
