"""Phi-3, Phi-3.5 and Phi-4 (Abdin et al., arXiv 2404.14219, 2412.08905): Llama's blocks from fused tensors.

Part of a head may turn (Phi-4-mini), every layer may slide, and the 128k checkpoints have a rope for short sequences
and one for long: see rope.LongRope for which of them serves.
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
from models.windows import Windows
from pallas_kernels.ragged import AttentionOptions

architectures = ("Phi3ForCausalLM",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Phi3Config:
    sizes: DecoderSizes
    rope: AnyRope
    windows: Windows


def parse(config: dict[str, Any]) -> Phi3Config:
    """Raises CheckpointError for a field that is missing or asks for what this family does not do."""
    fields = Fields(config)
    fields.require("hidden_act", "silu")
    for name in ("attention_bias", "mlp_bias", "lm_head_bias"):
        fields.require(name, False)
    sizes = read_sizes(fields, eps=1e-5)
    window = fields.integer("sliding_window") if "sliding_window" in fields else None
    return Phi3Config(
        sizes=sizes,
        rope=read_rope(fields, sizes.head_dim, sizes.max_position, share=1.0),
        windows=Windows((window,) * sizes.layers),
    )


def shape(config: Phi3Config) -> ModelShape:
    return config.sizes.shape()


def build(config: Phi3Config, dtype: Any, seed: int | None = 0, *, layers: LayerForm = "stacked") -> Decoder:
    """Random weights; without a seed, only their shapes."""
    return Decoder(WeightInit(dtype, seed, layers=layers), config.sizes, config.rope, partial(Block, config))


class Block(nnx.Module):
    def __init__(self, config: Phi3Config, init: WeightInit) -> None:
        s = config.sizes
        self.attention_norm = RMSNorm(init, s.d, s.eps)
        self.qkv = GroupedQKV(init, s.d, s.kv_heads, s.group, s.head_dim, bias=False)
        self.output = AttentionOutput(init, s.heads, s.head_dim, s.d, bias=False)
        self.mlp_norm = RMSNorm(init, s.d, s.eps)
        self.mlp = GatedMLP(init, s.d, s.f, jax.nn.silu)
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


def tensors(config: Phi3Config) -> Tensors:
    """The hub's names for the weights above."""

    def of_block(at: str, block: Places) -> Tensors:
        return {
            f"{at}input_layernorm.weight": block.put("attention_norm.scale", "D"),
            f"{at}post_attention_layernorm.weight": block.put("mlp_norm.scale", "D"),
            **block.fused_qkv(f"{at}self_attn.", "qkv"),
            **block.attention_output(f"{at}self_attn.", "output", bias=False),
            **block.fused_gated_mlp(f"{at}mlp.", "mlp"),
        }

    return decoder_tensors(config.sizes, of_block)
