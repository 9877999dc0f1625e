"""OLMo 2 and 3 (OLMo team, arXiv 2501.00656; OLMo 3, 2025): norms after attention and MLP, none before.

q and k have one norm over all heads of a token together. In OLMo 3 three of four layers slide, and rope scaling is of
the others alone.
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
from models.layers import AllHeadsRMSNorm, AttentionOutput, GatedMLP, GroupedQKV, RMSNorm, WeightInit
from models.rope import AnyRope, Rotations, read_layer_ropes, read_rope
from models.windows import Windows, read_windows
from pallas_kernels.ragged import AttentionOptions

architectures = ("Olmo2ForCausalLM", "Olmo3ForCausalLM")


@dataclass(frozen=True, slots=True, kw_only=True)
class Olmo2Config:
    sizes: DecoderSizes
    rope: AnyRope
    windows: Windows
    attention_bias: bool


def parse(config: dict[str, Any]) -> Olmo2Config:
    """Raises CheckpointError for a field that is missing or asks for what this family does not do."""
    fields = Fields(config)
    fields.require("hidden_act", "silu")
    sizes = read_sizes(fields, eps=1e-5)
    if "Olmo3ForCausalLM" in fields.strings("architectures"):
        window = None if fields.is_null("sliding_window") else fields.integer("sliding_window", 4096)
        windows = read_windows(fields, sizes.layers, window, lambda layer: (layer + 1) % 4 != 0)
        theta = fields.positive("rope_theta", 500_000.0)
        rope = read_layer_ropes(
            fields, sizes.head_dim, sizes.max_position, windows.slides, theta=theta, local_theta=theta
        )
    else:
        windows = Windows((None,) * sizes.layers)
        rope = read_rope(fields, sizes.head_dim, sizes.max_position)
    return Olmo2Config(sizes=sizes, rope=rope, windows=windows, attention_bias=fields.boolean("attention_bias", False))


def shape(config: Olmo2Config) -> ModelShape:
    return config.sizes.shape()


def build(config: Olmo2Config, dtype: Any, seed: int | None = 0, *, layers: LayerForm = "stacked") -> Decoder:
    """Random weights; without a seed, only their shapes."""
    return Decoder(WeightInit(dtype, seed, layers=layers), config.sizes, config.rope, partial(Block, config))


class Block(nnx.Module):
    def __init__(self, config: Olmo2Config, init: WeightInit) -> None:
        s = config.sizes
        self.qkv = GroupedQKV(init, s.d, s.kv_heads, s.group, s.head_dim, bias=config.attention_bias)
        self.q_norm = AllHeadsRMSNorm(init, s.heads, s.head_dim, s.eps, axis="heads")
        self.k_norm = AllHeadsRMSNorm(init, s.kv_heads, s.head_dim, s.eps, axis="kv_heads")
        self.output = AttentionOutput(init, s.heads, s.head_dim, s.d, bias=config.attention_bias)
        self.after_attention_norm = RMSNorm(init, s.d, s.eps)
        self.mlp = GatedMLP(init, s.d, s.f, jax.nn.silu)
        self.after_mlp_norm = RMSNorm(init, s.d, s.eps)
        self.options = AttentionOptions(scale=s.head_dim**-0.5)
        self.windows = config.windows

    def __call__(
        self, x: Array, cache: Cache, layer: Array | int, rotations: Rotations, attend: Attend
    ) -> tuple[Array, Cache]:
        turn = rotations.of(layer)
        q, k, v = self.qkv(x)
        q, k = turn(self.q_norm(q)), turn(self.k_norm(k))
        cache, out = attend(cache, layer, q, k, v, self.options, window=self.windows.of(layer))
        x += self.after_attention_norm(self.output(out))
        return x + self.after_mlp_norm(self.mlp(x)), cache


def tensors(config: Olmo2Config) -> Tensors:
    """The hub's names for the weights above."""

    def of_block(at: str, block: Places) -> Tensors:
        return {
            f"{at}post_attention_layernorm.weight": block.put("after_attention_norm.scale", "D"),
            f"{at}post_feedforward_layernorm.weight": block.put("after_mlp_norm.scale", "D"),
            f"{at}self_attn.q_norm.weight": block.put("q_norm.scale", "(HC) -> HC"),
            f"{at}self_attn.k_norm.weight": block.put("k_norm.scale", "(KC) -> KC"),
            **block.grouped_qkv(f"{at}self_attn.", "qkv", bias=config.attention_bias),
            **block.attention_output(f"{at}self_attn.", "output", bias=config.attention_bias),
            **block.gated_mlp(f"{at}mlp.", "mlp", bias=False),
        }

    return decoder_tensors(config.sizes, of_block)
