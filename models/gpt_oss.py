"""gpt-oss (OpenAI, arXiv 2508.10925).

Pre-norm blocks with biases everywhere: attention whose heads each have a sink, every other layer with a window, and
routed experts with a clipped SwiGLU. The experts of released checkpoints are in MXFP4, and are widened while loading.
"""

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
from models.moe import ClippedSwiglu, RoutedExperts, RouterRule, interleaved_tensors, read_experts
from models.rope import AnyRope, Rotations, read_rope
from models.windows import Windows, read_windows
from pallas_kernels.ragged import AttentionOptions

architectures = ("GptOssForCausalLM",)
quant_methods = ("mxfp4",)
# What the hub's library assumes where config.json says nothing of rope scaling, or null.
YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GptOssConfig:
    sizes: DecoderSizes
    rope: AnyRope
    windows: Windows
    attention_bias: bool
    experts: int
    top_k: int
    gate: ClippedSwiglu
    packed: bool  # its experts are in MXFP4 in the checkpoint


def parse(config: dict[str, Any]) -> GptOssConfig:
    """Raises CheckpointError for a field that is missing or asks for what this family does not do."""
    fields = Fields(config)
    if "rope_parameters" not in fields and "rope_scaling" not in fields:
        fields = Fields({**config, "rope_parameters": YARN})
    fields.require("hidden_act", "silu")
    sizes = read_sizes(fields, head_dim=64, eps=1e-5)
    window = None if fields.is_null("sliding_window") else fields.integer("sliding_window", 128)
    experts, top_k = read_experts(fields, "num_local_experts", experts=128, top_k=4)
    return GptOssConfig(
        sizes=sizes,
        rope=read_rope(fields, sizes.head_dim, sizes.max_position, theta=150_000.0),
        windows=read_windows(fields, sizes.layers, window, lambda layer: layer % 2 == 0),
        attention_bias=fields.boolean("attention_bias", True),
        experts=experts,
        top_k=top_k,
        gate=ClippedSwiglu(limit=fields.positive("swiglu_limit", 7.0), alpha=fields.positive("swiglu_alpha", 1.702)),
        packed="quantization_config" in fields,
    )


def shape(config: GptOssConfig) -> ModelShape:
    return replace(config.sizes.shape(), experts=config.experts, experts_per_token=config.top_k)


def build(config: GptOssConfig, dtype: Any, seed: int | None = 0, *, layers: LayerForm = "stacked") -> Decoder:
    """Random weights; without a seed, only their shapes."""
    return Decoder(WeightInit(dtype, seed, layers=layers), config.sizes, config.rope, partial(Block, config))


class Block(nnx.Module):
    def __init__(self, config: GptOssConfig, init: WeightInit) -> None:
        s = config.sizes
        rule = RouterRule(top_k=config.top_k, renormalize=True)
        self.attention_norm = RMSNorm(init, s.d, s.eps)
        self.qkv = GroupedQKV(init, s.d, s.kv_heads, s.group, s.head_dim, bias=config.attention_bias)
        self.sinks = init.zeros((s.heads,), ("heads",))
        self.output = AttentionOutput(init, s.heads, s.head_dim, s.d, bias=config.attention_bias)
        self.mlp_norm = RMSNorm(init, s.d, s.eps)
        self.mlp = RoutedExperts(init, config.experts, s.d, s.f, rule, gate=config.gate, bias=True, router_bias=True)
        self.options = AttentionOptions(scale=s.head_dim**-0.5)
        self.windows = config.windows

    def __call__(
        self, x: Array, cache: Cache, layer: Array | int, rotations: Rotations, attend: Attend
    ) -> tuple[Array, Cache]:
        turn = rotations.of(layer)
        q, k, v = self.qkv(self.attention_norm(x))
        window = self.windows.of(layer)
        cache, out = attend(cache, layer, turn(q), turn(k), v, self.options, sinks=self.sinks[...], window=window)
        x += self.output(out)
        return x + self.mlp(self.mlp_norm(x)), cache


def tensors(config: GptOssConfig) -> Tensors:
    """The hub's names for the weights above."""

    def of_block(at: str, block: Places) -> Tensors:
        block = block.with_sizes(E=config.experts)
        return {
            f"{at}input_layernorm.weight": block.put("attention_norm.scale", "D"),
            f"{at}post_attention_layernorm.weight": block.put("mlp_norm.scale", "D"),
            f"{at}self_attn.sinks": block.put("sinks", "H"),
            **block.grouped_qkv(f"{at}self_attn.", "qkv", bias=config.attention_bias),
            **block.attention_output(f"{at}self_attn.", "output", bias=config.attention_bias),
            f"{at}mlp.router.weight": block.put("mlp.router", "ED -> DE"),
            f"{at}mlp.router.bias": block.put("mlp.router_bias", "E"),
            **interleaved_tensors(block, f"{at}mlp.", "mlp", packed=config.packed),
        }

    return decoder_tensors(config.sizes, of_block)
