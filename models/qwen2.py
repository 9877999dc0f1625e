"""Qwen2 and Qwen2.5 (Yang et al., arXiv 2407.10671, 2412.15115): Llama's blocks with biases on q, k and v.

The upper layers may slide; no released checkpoint has switched that on.
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
from models.windows import Windows, read_upper_windows
from pallas_kernels.ragged import AttentionOptions

architectures = ("Qwen2ForCausalLM",)
gives_states = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwen2Config:
    sizes: DecoderSizes
    rope: AnyRope
    windows: Windows


def parse(config: dict[str, Any]) -> Qwen2Config:
    """Raises CheckpointError for a field that is missing or asks for what this family does not do."""
    fields = Fields(config)
    fields.require("hidden_act", "silu")
    sizes = read_sizes(fields)
    return Qwen2Config(
        sizes=sizes,
        rope=read_rope(fields, sizes.head_dim, sizes.max_position),
        windows=read_upper_windows(fields, sizes.layers),
    )


def shape(config: Qwen2Config) -> ModelShape:
    return config.sizes.shape()


def build(config: Qwen2Config, dtype: Any, seed: int | None = 0, *, layers: LayerForm = "stacked") -> Decoder:
    """Random weights; without a seed, only their shapes."""
    return Decoder(WeightInit(dtype, seed, layers=layers), config.sizes, config.rope, partial(Block, config))


class Block(nnx.Module):
    def __init__(self, config: Qwen2Config, init: WeightInit) -> None:
        s = config.sizes
        self.attention_norm = RMSNorm(init, s.d, s.eps)
        self.qkv = GroupedQKV(init, s.d, s.kv_heads, s.group, s.head_dim, bias=True)
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


def tensors(config: Qwen2Config) -> Tensors:
    """The hub's names for the weights above."""

    def of_block(at: str, block: Places) -> Tensors:
        return {
            f"{at}input_layernorm.weight": block.put("attention_norm.scale", "D"),
            f"{at}post_attention_layernorm.weight": block.put("mlp_norm.scale", "D"),
            **block.grouped_qkv(f"{at}self_attn.", "qkv", bias=True),
            **block.attention_output(f"{at}self_attn.", "output", bias=False),
            **block.gated_mlp(f"{at}mlp.", "mlp", bias=False),
        }

    return decoder_tensors(config.sizes, of_block)
