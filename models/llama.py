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

from models.fields import Fields
from models.hub import Places, Tensors
from models.interface import Attend, Cache, LayerForm, ModelShape, walk_layers
from models.layers import AttentionOutput, Embedding, GatedMLP, GroupedQKV, Head, RMSNorm, WeightInit
from models.rope import Rope, read_rope
from pallas_kernels.ragged import AttentionOptions

architectures = ("LlamaForCausalLM",)


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaConfig:
    vocab_size: int
    d: int
    f: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    max_position: int
    rope: Rope
    tied: bool
    attention_bias: bool = False
    mlp_bias: bool = False


def parse(config: dict[str, Any]) -> LlamaConfig:
    """Raises CheckpointError for a field that is missing or asks for what this family does not do."""
    fields = Fields(config)
    fields.require("hidden_act", "silu")
    heads = fields.integer("num_attention_heads")
    d = fields.integer("hidden_size")
    head_dim = fields.head_dim(d, heads)
    max_position = fields.integer("max_position_embeddings")
    return LlamaConfig(
        vocab_size=fields.integer("vocab_size"),
        d=d,
        f=fields.integer("intermediate_size"),
        layers=fields.integer("num_hidden_layers"),
        heads=heads,
        kv_heads=fields.kv_heads(heads),
        head_dim=head_dim,
        eps=fields.positive("rms_norm_eps", 1e-6),
        max_position=max_position,
        rope=read_rope(fields, head_dim, max_position),
        tied=fields.boolean("tie_word_embeddings", False),
        attention_bias=fields.boolean("attention_bias", False),
        mlp_bias=fields.boolean("mlp_bias", False),
    )


def shape(config: LlamaConfig) -> ModelShape:
    return ModelShape(
        vocab_size=config.vocab_size,
        num_layers=config.layers,
        num_heads=config.heads,
        num_kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        max_position=config.max_position,
    )


def build(config: LlamaConfig, dtype: Any, seed: int | None = 0, *, layers: LayerForm = "stacked") -> "Llama":
    """Random weights; without a seed, only their shapes."""
    return Llama(config, WeightInit(dtype, seed, layers=layers))


class Block(nnx.Module):
    def __init__(self, config: LlamaConfig, init: WeightInit) -> None:
        d, k, c = config.d, config.kv_heads, config.head_dim
        self.attention_norm = RMSNorm(init, d, config.eps)
        self.qkv = GroupedQKV(init, d, k, config.heads // k, c, bias=config.attention_bias)
        self.output = AttentionOutput(init, config.heads, c, d, bias=config.attention_bias)
        self.mlp_norm = RMSNorm(init, d, config.eps)
        self.mlp = GatedMLP(init, d, config.f, jax.nn.silu, bias=config.mlp_bias)


class Llama(nnx.Module):
    def __init__(self, config: LlamaConfig, init: WeightInit) -> None:
        self.config = config
        self.embedding = Embedding(init, config.vocab_size, config.d)
        self.layers = init.layers(config.layers, partial(Block, config))
        self.norm = RMSNorm(init, config.d, config.eps)
        self.head = None if config.tied else Head(init, config.d, config.vocab_size)

    def __call__(self, token_ids: Array, positions: Array, cache: Cache, attend: Attend) -> tuple[Array, Cache]:
        """token_ids [T], positions [T] -> (hidden [T, D], cache)."""
        options = AttentionOptions(scale=self.config.head_dim**-0.5)

        def body(block: Block, carry: tuple[Array, Cache], layer: Array | int) -> tuple[Array, Cache]:
            x, cache = carry
            q, k, v = block.qkv(block.attention_norm(x))
            q, k = self.config.rope(q, positions), self.config.rope(k, positions)
            cache, out = attend(cache, layer, q.reshape(x.shape[0], -1, k.shape[-1]), k, v, options)
            x += block.output(out)
            return x + block.mlp(block.mlp_norm(x)), cache

        x, cache = walk_layers(self.layers, (self.embedding(token_ids), cache), body)
        return self.norm(x), cache

    def logits(self, hidden: Array) -> Array:  # [N, D] -> [N, V] float32
        return self.embedding.logits(hidden) if self.head is None else self.head(hidden)


def tensors(config: LlamaConfig) -> Tensors:
    """The hub's names for the weights above."""
    h, k = config.heads, config.kv_heads
    sizes = {"V": config.vocab_size, "D": config.d, "F": config.f, "H": h, "K": k, "G": h // k, "C": config.head_dim}
    top = Places(sizes=sizes)
    table: Tensors = {
        "model.embed_tokens.weight": top.put("embedding.table", "VD"),
        "model.norm.weight": top.put("norm.scale", "D"),
        "lm_head.weight": None if config.tied else top.put("head.weight", "VD -> DV"),
    }
    for layer in range(config.layers):
        at, block = f"model.layers.{layer}.", top.of_layer(layer)
        table[f"{at}self_attn.rotary_emb.inv_freq"] = None  # in some old files; computed here
        table[f"{at}input_layernorm.weight"] = block.put("attention_norm.scale", "D")
        table[f"{at}post_attention_layernorm.weight"] = block.put("mlp_norm.scale", "D")
        table |= block.grouped_qkv(f"{at}self_attn.", "qkv", bias=config.attention_bias)
        table |= block.attention_output(f"{at}self_attn.", "output", bias=config.attention_bias)
        table |= block.gated_mlp(f"{at}mlp.", "mlp", bias=config.mlp_bias)
    return table
