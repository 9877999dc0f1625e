"""GLM-4 (GLM team, arXiv 2406.12793): the 9B chat models, and the 0414 models, whose blocks have norms after them too.

Half of each head turns, in adjacent pairs; biases on q, k and v; the MLP's gate and up are one tensor.
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

architectures = ("Glm4ForCausalLM", "GlmForCausalLM")


@dataclass(frozen=True, slots=True, kw_only=True)
class Glm4Config:
    sizes: DecoderSizes
    rope: AnyRope
    attention_bias: bool  # on q, k and v
    norms_after: bool


def parse(config: dict[str, Any]) -> Glm4Config:
    """Raises CheckpointError for a field that is missing or asks for what this family does not do."""
    fields = Fields(config)
    fields.require("hidden_act", "silu")
    sizes = read_sizes(fields, head_dim=128, eps=1.5625e-7)
    return Glm4Config(
        sizes=sizes,
        rope=read_rope(fields, sizes.head_dim, sizes.max_position, share=0.5, interleaved=True),
        attention_bias=fields.boolean("attention_bias", True),
        norms_after="GlmForCausalLM" not in fields.strings("architectures"),
    )


def shape(config: Glm4Config) -> ModelShape:
    return config.sizes.shape()


def build(config: Glm4Config, dtype: Any, seed: int | None = 0, *, layers: LayerForm = "stacked") -> Decoder:
    """Random weights; without a seed, only their shapes."""
    return Decoder(WeightInit(dtype, seed, layers=layers), config.sizes, config.rope, partial(Block, config))


class Block(nnx.Module):
    def __init__(self, config: Glm4Config, init: WeightInit) -> None:
        s = config.sizes
        self.attention_norm = RMSNorm(init, s.d, s.eps)
        self.qkv = GroupedQKV(init, s.d, s.kv_heads, s.group, s.head_dim, bias=config.attention_bias)
        self.output = AttentionOutput(init, s.heads, s.head_dim, s.d, bias=False)
        self.after_attention_norm = RMSNorm(init, s.d, s.eps) if config.norms_after else None
        self.mlp_norm = RMSNorm(init, s.d, s.eps)
        self.mlp = GatedMLP(init, s.d, s.f, jax.nn.silu)
        self.after_mlp_norm = RMSNorm(init, s.d, s.eps) if config.norms_after else None
        self.options = AttentionOptions(scale=s.head_dim**-0.5)

    def __call__(
        self, x: Array, cache: Cache, layer: Array | int, rotations: Rotations, attend: Attend
    ) -> tuple[Array, Cache]:
        turn = rotations.of(layer)
        q, k, v = self.qkv(self.attention_norm(x))
        cache, out = attend(cache, layer, turn(q), turn(k), v, self.options)
        out = self.output(out)
        x += out if self.after_attention_norm is None else self.after_attention_norm(out)
        out = self.mlp(self.mlp_norm(x))
        return x + (out if self.after_mlp_norm is None else self.after_mlp_norm(out)), cache


def tensors(config: Glm4Config) -> Tensors:
    """The hub's names for the weights above."""

    def of_block(at: str, block: Places) -> Tensors:
        table: Tensors = {
            f"{at}input_layernorm.weight": block.put("attention_norm.scale", "D"),
            f"{at}post_attention_layernorm.weight": block.put("mlp_norm.scale", "D"),
            **block.grouped_qkv(f"{at}self_attn.", "qkv", bias=config.attention_bias),
            **block.attention_output(f"{at}self_attn.", "output", bias=False),
            **block.fused_gated_mlp(f"{at}mlp.", "mlp"),
        }
        if config.norms_after:
            table[f"{at}post_self_attn_layernorm.weight"] = block.put("after_attention_norm.scale", "D")
            table[f"{at}post_mlp_layernorm.weight"] = block.put("after_mlp_norm.scale", "D")
        return table

    return decoder_tensors(config.sizes, of_block)
