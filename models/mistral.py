"""Mistral 7B and its kin (Jiang et al., arXiv 2310.06825): Llama's blocks with a sliding window, or with none."""

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

architectures = ("MistralForCausalLM",)


@dataclass(frozen=True, slots=True, kw_only=True)
class MistralConfig:
    sizes: DecoderSizes
    rope: AnyRope
    windows: Windows


def parse(config: dict[str, Any]) -> MistralConfig:
    """Raises CheckpointError for a field that is missing or asks for what this family does not do."""
    fields = Fields(config)
    fields.require("hidden_act", "silu")
    fields.require("layer_types", None)
    sizes = read_sizes(fields)
    window = None if fields.is_null("sliding_window") else fields.integer("sliding_window", 4096)
    return MistralConfig(
        sizes=sizes,
        rope=read_rope(fields, sizes.head_dim, sizes.max_position),
        windows=Windows((window,) * sizes.layers),
    )


def shape(config: MistralConfig) -> ModelShape:
    return config.sizes.shape()


def build(config: MistralConfig, dtype: Any, seed: int | None = 0, *, layers: LayerForm = "stacked") -> Decoder:
    """Random weights; without a seed, only their shapes."""
    return Decoder(WeightInit(dtype, seed, layers=layers), config.sizes, config.rope, partial(Block, config))


class Block(nnx.Module):
    def __init__(self, config: MistralConfig, init: WeightInit) -> None:
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


def tensors(config: MistralConfig) -> Tensors:
    """The hub's names for the weights above."""

    def of_block(at: str, block: Places) -> Tensors:
        return {
            f"{at}input_layernorm.weight": block.put("attention_norm.scale", "D"),
            f"{at}post_attention_layernorm.weight": block.put("mlp_norm.scale", "D"),
            **block.grouped_qkv(f"{at}self_attn.", "qkv", bias=False),
            **block.attention_output(f"{at}self_attn.", "output", bias=False),
            **block.gated_mlp(f"{at}mlp.", "mlp", bias=False),
        }

    return decoder_tensors(config.sizes, of_block)
