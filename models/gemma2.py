"""Gemma 2 (Gemma team, arXiv 2408.00118).

Norms before and after attention and MLP, with weights kept as their difference from 1; a GELU-gated MLP; soft caps on
scores and logits; every other layer slides. Token vectors are scaled by sqrt(D) and give the logits too.
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
from models.layers import AttentionOutput, GatedMLP, GroupedQKV, OffsetRMSNorm, WeightInit
from models.rope import AnyRope, Rotations, read_rope
from models.windows import Windows, read_windows
from pallas_kernels.ragged import AttentionOptions

architectures = ("Gemma2ForCausalLM",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma2Config:
    sizes: DecoderSizes
    rope: AnyRope
    windows: Windows
    scale: float  # of the scores
    score_cap: float | None
    logit_cap: float | None
    attention_bias: bool


def parse(config: dict[str, Any]) -> Gemma2Config:
    """Raises CheckpointError for a field that is missing or asks for what this family does not do."""
    fields = Fields(config)
    fields.require("hidden_activation", "gelu_pytorch_tanh")
    fields.require("use_bidirectional_attention", False)
    sizes = read_sizes(fields, head_dim=256, tied=True)
    window = None if fields.is_null("sliding_window") else fields.integer("sliding_window", 4096)
    return Gemma2Config(
        sizes=sizes,
        rope=read_rope(fields, sizes.head_dim, sizes.max_position),
        windows=read_windows(fields, sizes.layers, window, lambda layer: layer % 2 == 0),
        scale=fields.positive("query_pre_attn_scalar", 256) ** -0.5,
        score_cap=fields.cap("attn_logit_softcapping", 50.0),
        logit_cap=fields.cap("final_logit_softcapping", 30.0),
        attention_bias=fields.boolean("attention_bias", False),
    )


def shape(config: Gemma2Config) -> ModelShape:
    return config.sizes.shape()


def build(config: Gemma2Config, dtype: Any, seed: int | None = 0, *, layers: LayerForm = "stacked") -> Decoder:
    """Random weights; without a seed, only their shapes."""
    return Decoder(
        WeightInit(dtype, seed, layers=layers),
        config.sizes,
        config.rope,
        partial(Block, config),
        norm=OffsetRMSNorm,
        embedding_scale=config.sizes.d**0.5,
        logit_cap=config.logit_cap,
    )


class Block(nnx.Module):
    def __init__(self, config: Gemma2Config, init: WeightInit) -> None:
        s = config.sizes
        self.attention_norm = OffsetRMSNorm(init, s.d, s.eps)
        self.qkv = GroupedQKV(init, s.d, s.kv_heads, s.group, s.head_dim, bias=config.attention_bias)
        self.output = AttentionOutput(init, s.heads, s.head_dim, s.d, bias=config.attention_bias)
        self.after_attention_norm = OffsetRMSNorm(init, s.d, s.eps)
        self.mlp_norm = OffsetRMSNorm(init, s.d, s.eps)
        self.mlp = GatedMLP(init, s.d, s.f, jax.nn.gelu)  # its tanh approximation
        self.after_mlp_norm = OffsetRMSNorm(init, s.d, s.eps)
        self.options = AttentionOptions(scale=config.scale, soft_cap=config.score_cap)
        self.windows = config.windows

    def __call__(
        self, x: Array, cache: Cache, layer: Array | int, rotations: Rotations, attend: Attend
    ) -> tuple[Array, Cache]:
        turn = rotations.of(layer)
        q, k, v = self.qkv(self.attention_norm(x))
        cache, out = attend(cache, layer, turn(q), turn(k), v, self.options, window=self.windows.of(layer))
        x += self.after_attention_norm(self.output(out))
        return x + self.after_mlp_norm(self.mlp(self.mlp_norm(x))), cache


def tensors(config: Gemma2Config) -> Tensors:
    """The hub's names for the weights above."""

    def of_block(at: str, block: Places) -> Tensors:
        return {
            f"{at}input_layernorm.weight": block.put("attention_norm.scale", "D"),
            f"{at}post_attention_layernorm.weight": block.put("after_attention_norm.scale", "D"),
            f"{at}pre_feedforward_layernorm.weight": block.put("mlp_norm.scale", "D"),
            f"{at}post_feedforward_layernorm.weight": block.put("after_mlp_norm.scale", "D"),
            **block.grouped_qkv(f"{at}self_attn.", "qkv", bias=config.attention_bias),
            **block.attention_output(f"{at}self_attn.", "output", bias=config.attention_bias),
            **block.gated_mlp(f"{at}mlp.", "mlp", bias=False),
        }

    return decoder_tensors(config.sizes, of_block)
