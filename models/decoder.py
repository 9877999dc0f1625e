"""A decoder around its blocks: the sizes it is built from, token vectors, the walk, the last norm, the logits.

A family is its block: what it computes, which fields of config.json say how, and what the hub calls its weights.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import jax.numpy as jnp
from flax import nnx
from jax import Array

from models.fields import Fields
from models.hub import Places, Tensors
from models.interface import Attend, Cache, ModelShape, walk_layers
from models.layers import Embedding, Head, Norm, RMSNorm, WeightInit
from models.rope import AnyRope, Rotations


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSizes:
    """The numbers that every decoder has."""

    vocab_size: int
    d: int
    f: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float  # of its norms
    max_position: int  # tokens it was made for
    tied: bool  # the table of token vectors gives the logits too

    @property
    def group(self) -> int:
        """Query heads per KV head."""
        return self.heads // self.kv_heads

    def shape(self) -> ModelShape:
        return ModelShape(
            vocab_size=self.vocab_size,
            num_layers=self.layers,
            num_heads=self.heads,
            num_kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            max_position=self.max_position,
        )

    def places(self) -> Places:
        sizes = {"V": self.vocab_size, "D": self.d, "F": self.f, "C": self.head_dim}
        return Places(sizes={**sizes, "H": self.heads, "K": self.kv_heads, "G": self.group})


def read_sizes(fields: Fields, *, head_dim: int | None = None, eps: float = 1e-6, tied: bool = False) -> DecoderSizes:
    """From config.json; the arguments are what the hub assumes for this architecture where a field is missing.

    Without `head_dim` that is the model's width over its heads. Raises CheckpointError naming the field.
    """
    d, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    return DecoderSizes(
        vocab_size=fields.integer("vocab_size"),
        d=d,
        f=fields.integer("intermediate_size"),
        layers=fields.integer("num_hidden_layers"),
        heads=heads,
        kv_heads=fields.kv_heads(heads),
        head_dim=fields.head_dim(d, heads) if head_dim is None else fields.integer("head_dim", head_dim),
        eps=fields.positive("rms_norm_eps", eps),
        max_position=fields.integer("max_position_embeddings"),
        tied=fields.boolean("tie_word_embeddings", tied),
    )


class Block(Protocol):
    """One layer, an nnx.Module: (x [T, D], cache) -> the same after it.

    `layer` is its index, traced where layers are scanned; `rotations.of(layer)` turns its queries and keys.
    """

    def __call__(
        self, x: Array, cache: Cache, layer: Array | int, rotations: Rotations, attend: Attend
    ) -> tuple[Array, Cache]: ...


class Decoder(nnx.Module):
    """A Model (see interface.py) of blocks that `block` makes."""

    def __init__(
        self,
        init: WeightInit,
        sizes: DecoderSizes,
        rope: AnyRope,
        block: Callable[[WeightInit], nnx.Module],
        *,
        norm: Norm = RMSNorm,
        embedding_scale: float | None = None,  # on token vectors, not on tied logits
        logit_cap: float | None = None,  # logits become cap * tanh(logits / cap)
    ) -> None:
        self.embedding = Embedding(init, sizes.vocab_size, sizes.d, embedding_scale)
        self.layers = init.layers(sizes.layers, block)
        self.norm = norm(init, sizes.d, sizes.eps)
        self.head = None if sizes.tied else Head(init, sizes.d, sizes.vocab_size)
        self.rope = rope
        self.logit_cap = logit_cap

    def __call__(self, token_ids: Array, positions: Array, cache: Cache, attend: Attend) -> tuple[Array, Cache]:
        """token_ids [T], positions [T] -> (hidden [T, D], cache)."""
        rotations = self.rope.at(positions)

        def body(block: Block, carry: tuple[Array, Cache], layer: Array | int) -> tuple[Array, Cache]:
            return block(*carry, layer, rotations, attend)

        x, cache = walk_layers(self.layers, (self.embedding(token_ids), cache), body)
        return self.norm(x), cache

    def logits(self, hidden: Array) -> Array:  # [N, D] -> [N, V] float32
        logits = self.embedding.logits(hidden) if self.head is None else self.head(hidden)
        return logits if self.logit_cap is None else self.logit_cap * jnp.tanh(logits / self.logit_cap)


def decoder_tensors(sizes: DecoderSizes, of_block: Callable[[str, Places], Tensors]) -> Tensors:
    """The hub's names for a Decoder's weights; `of_block` gives those of one block, from the prefix of its names."""
    top = sizes.places()
    table: Tensors = {
        "model.embed_tokens.weight": top.put("embedding.table", "VD"),
        "model.norm.weight": top.put("norm.scale", "D"),
        "lm_head.weight": None if sizes.tied else top.put("head.weight", "VD -> DV"),
    }
    for layer in range(sizes.layers):
        table |= of_block(f"model.layers.{layer}.", top.of_layer(layer))
    return table
