"""A model family as its author writes it: this one file, which nothing of weft knows.

Attention, which sees the last few tokens, and MLP read the same norm and are added together.
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
from models.rope import Rotations, read_rope
from pallas_kernels.ragged import AttentionOptions

architectures = ("ToyForCausalLM",)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToyConfig:
    sizes: DecoderSizes
    window: int


def parse(config: dict[str, Any]) -> ToyConfig:
    fields = Fields(config)
    return ToyConfig(sizes=read_sizes(fields), window=fields.integer("attention_window"))


def shape(config: ToyConfig) -> ModelShape:
    return config.sizes.shape()


def build(config: ToyConfig, dtype: Any, seed: int | None = 0, *, layers: LayerForm = "stacked") -> Decoder:
    rope = read_rope(Fields({}), config.sizes.head_dim, config.sizes.max_position)
    return Decoder(WeightInit(dtype, seed, layers=layers), config.sizes, rope, partial(Block, config))


class Block(nnx.Module):
    def __init__(self, config: ToyConfig, init: WeightInit) -> None:
        s = config.sizes
        self.before = RMSNorm(init, s.d, s.eps)
        self.qkv = GroupedQKV(init, s.d, s.kv_heads, s.group, s.head_dim, bias=False)
        self.output = AttentionOutput(init, s.heads, s.head_dim, s.d, bias=False)
        self.mlp = GatedMLP(init, s.d, s.f, jax.nn.relu)
        self.options = AttentionOptions(scale=s.head_dim**-0.5)
        self.window = config.window

    def __call__(
        self, x: Array, cache: Cache, layer: Array | int, rotations: Rotations, attend: Attend
    ) -> tuple[Array, Cache]:
        turn = rotations.of(layer)
        normal = self.before(x)
        q, k, v = self.qkv(normal)
        cache, out = attend(cache, layer, turn(q), turn(k), v, self.options, window=self.window)
        return x + self.output(out) + self.mlp(normal), cache


def tensors(config: ToyConfig) -> Tensors:
    def of_block(at: str, block: Places) -> Tensors:
        return {
            f"{at}norm.weight": block.put("before.scale", "D"),
            **block.grouped_qkv(f"{at}attention.", "qkv", bias=False),
            **block.attention_output(f"{at}attention.", "output", bias=False),
            **block.gated_mlp(f"{at}mlp.", "mlp", bias=False),
        }

    return decoder_tensors(config.sizes, of_block)
