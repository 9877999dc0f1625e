"""BERT encoders (Devlin et al., arXiv 1810.04805): a text's tokens, all seeing each other -> one vector a token.

Not a decoder: it has no pages, no positions to come, and no logits. Texts of a batch are padded to one length.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from models.fields import Fields
from models.hub import Places, Tensors
from models.interface import LayerForm, ModelShape, walk_layers
from models.layers import AttentionOutput, Embedding, GroupedQKV, WeightInit, contract

architectures = ("BertModel",)

# Of the heads for training, which a served encoder has no use for; the ids that some files keep as a tensor.
_UNUSED = ("pooler.dense.weight", "pooler.dense.bias", "embeddings.position_ids")


@dataclass(frozen=True, slots=True, kw_only=True)
class BertConfig:
    vocab_size: int
    d: int
    f: int
    layers: int
    heads: int
    eps: float
    max_position: int
    types: int  # of segments; texts here are all of the first

    @property
    def head_dim(self) -> int:
        return self.d // self.heads


def parse(config: dict[str, Any]) -> BertConfig:
    fields = Fields(config)
    fields.require("hidden_act", "gelu")
    fields.require("position_embedding_type", "absolute")
    fields.require("is_decoder", False)
    heads, d = fields.integer("num_attention_heads"), fields.integer("hidden_size")
    if d % heads:
        raise fields.error("hidden_size", f"a multiple of num_attention_heads, {heads}")
    return BertConfig(
        vocab_size=fields.integer("vocab_size"),
        d=d,
        f=fields.integer("intermediate_size"),
        layers=fields.integer("num_hidden_layers"),
        heads=heads,
        eps=fields.positive("layer_norm_eps", 1e-12),
        max_position=fields.integer("max_position_embeddings"),
        types=fields.integer("type_vocab_size", 2),
    )


def shape(config: BertConfig) -> ModelShape:
    return ModelShape(
        vocab_size=config.vocab_size,
        num_layers=config.layers,
        num_heads=config.heads,
        num_kv_heads=config.heads,
        head_dim=config.head_dim,
        max_position=config.max_position,
    )


class LayerNorm(nnx.Module):
    """(x - mean) / deviation * scale + bias, in float32 (Ba et al., arXiv 1607.06450)."""

    def __init__(self, init: WeightInit, width: int, eps: float) -> None:
        self.scale = init.ones((width,), ("model",))
        self.bias = init.zeros((width,), ("model",))
        self.eps = eps

    def __call__(self, x: Array) -> Array:  # [..., D]
        wide = x.astype(jnp.float32)
        centred = wide - jnp.mean(wide, axis=-1, keepdims=True)
        normal = centred * jax.lax.rsqrt(jnp.mean(jnp.square(centred), axis=-1, keepdims=True) + self.eps)
        return (normal * self.scale[...] + self.bias[...]).astype(x.dtype)


class MLP(nnx.Module):
    """down(gelu(up(x))), with biases."""

    def __init__(self, init: WeightInit, d: int, f: int) -> None:
        self.up = init.weight((d, f), ("model", "mlp"), fan_in=d, summed=(0,))
        self.up_bias = init.zeros((f,), ("mlp",))
        self.down = init.weight((f, d), ("mlp", "model"), fan_in=f, summed=(0,))
        self.down_bias = init.zeros((d,), ("model",))

    def __call__(self, x: Array) -> Array:  # [T, D] -> [T, D]
        hidden = jax.nn.gelu(contract("td,df->tf", x, self.up[...]) + self.up_bias[...], approximate=False)
        return contract("tf,fd->td", hidden, self.down[...]) + self.down_bias[...]


class BertBlock(nnx.Module):
    """Attention among the tokens of each text, then the MLP; the norms come after, as in the first transformers."""

    def __init__(self, init: WeightInit, config: BertConfig) -> None:
        self.qkv = GroupedQKV(init, config.d, config.heads, 1, config.head_dim, bias=True)
        self.output = AttentionOutput(init, config.heads, config.head_dim, config.d, bias=True)
        self.attention_norm = LayerNorm(init, config.d, config.eps)
        self.mlp = MLP(init, config.d, config.f)
        self.mlp_norm = LayerNorm(init, config.d, config.eps)

    def __call__(self, x: Array, real: Array) -> Array:
        """x [B * N, D], real [B, N] -> [B * N, D]"""
        q, k, v = (part.reshape(*real.shape, *part.shape[1:]) for part in self.qkv(x))  # [B, N, H, C]
        scores = jnp.einsum("bqhc,bkhc->bhqk", q, k, preferred_element_type=jnp.float32) * q.shape[-1] ** -0.5
        weights = jax.nn.softmax(jnp.where(real[:, None, None], scores, -jnp.inf), axis=-1)
        mixed = jnp.einsum("bhqk,bkhc->bqhc", weights.astype(v.dtype), v)
        x = self.attention_norm(x + self.output(mixed.reshape(-1, *mixed.shape[2:])))
        return self.mlp_norm(x + self.mlp(x))


class Bert(nnx.Module):
    def __init__(self, init: WeightInit, config: BertConfig) -> None:
        self.embedding = Embedding(init, config.vocab_size, config.d)
        self.positions = Embedding(init, config.max_position, config.d)
        self.types = Embedding(init, config.types, config.d)
        self.norm = LayerNorm(init, config.d, config.eps)
        self.layers = init.layers(config.layers, lambda init: BertBlock(init, config))

    def __call__(self, token_ids: Array, lengths: Array) -> Array:
        """token_ids [B, N], lengths [B], at least 1 -> hidden [B, N, D]; what stands at padding means nothing."""
        texts, longest = token_ids.shape
        real = jnp.arange(longest) < lengths[:, None]
        x = self.embedding(token_ids) + self.positions(jnp.arange(longest)) + self.types(jnp.zeros(1, jnp.int32))
        x = self.norm(x).reshape(texts * longest, -1)
        x = walk_layers(self.layers, x, lambda block, x, layer: block(x, real))
        return x.reshape(texts, longest, -1)


def build(config: BertConfig, dtype: Any, seed: int | None = 0, *, layers: LayerForm = "stacked") -> Bert:
    return Bert(WeightInit(dtype, seed, layers=layers), config)


def mean_vectors(hidden: Array, lengths: Array) -> Array:
    """hidden [B, N, D], lengths [B] -> [B, D] float32: the mean over a text's tokens, of length 1 (Reimers and
    Gurevych, arXiv 1908.10084)."""
    real = (jnp.arange(hidden.shape[1]) < lengths[:, None])[..., None]
    total = jnp.sum(jnp.where(real, hidden.astype(jnp.float32), 0.0), axis=1)
    return total / jnp.maximum(jnp.linalg.norm(total, axis=-1, keepdims=True), 1e-12)


def tensors(config: BertConfig) -> Tensors:
    top = Places(
        sizes={
            **{"V": config.vocab_size, "D": config.d, "F": config.f, "K": config.heads, "H": config.heads},
            **{"C": config.head_dim, "P": config.max_position, "N": config.types},
        }
    )
    table: Tensors = {
        "embeddings.word_embeddings.weight": top.put("embedding.table", "VD"),
        "embeddings.position_embeddings.weight": top.put("positions.table", "PD"),
        "embeddings.token_type_embeddings.weight": top.put("types.table", "ND"),
        "embeddings.LayerNorm.weight": top.put("norm.scale", "D"),
        "embeddings.LayerNorm.bias": top.put("norm.bias", "D"),
        **dict.fromkeys(_UNUSED),
    }
    for layer in range(config.layers):
        table |= _block_tensors(f"encoder.layer.{layer}.", top.of_layer(layer))
    return table


def _block_tensors(prefix: str, places: Places) -> Tensors:
    table: Tensors = {
        f"{prefix}attention.output.dense.weight": places.put("output.weight", "D(HC) -> HCD"),
        f"{prefix}attention.output.dense.bias": places.put("output.bias", "D"),
        f"{prefix}attention.output.LayerNorm.weight": places.put("attention_norm.scale", "D"),
        f"{prefix}attention.output.LayerNorm.bias": places.put("attention_norm.bias", "D"),
        f"{prefix}intermediate.dense.weight": places.put("mlp.up", "FD -> DF"),
        f"{prefix}intermediate.dense.bias": places.put("mlp.up_bias", "F"),
        f"{prefix}output.dense.weight": places.put("mlp.down", "DF -> FD"),
        f"{prefix}output.dense.bias": places.put("mlp.down_bias", "D"),
        f"{prefix}output.LayerNorm.weight": places.put("mlp_norm.scale", "D"),
        f"{prefix}output.LayerNorm.bias": places.put("mlp_norm.bias", "D"),
    }
    for place, name in enumerate(("query", "key", "value")):
        part = f"{prefix}attention.self.{name}"
        table[f"{part}.weight"] = places.put("qkv.weight", "(KC)D -> DKC", np.s_[:, :, place])
        table[f"{part}.bias"] = places.put("qkv.bias", "(KC) -> KC", np.s_[:, place])
    return table
