"""A decoder around its blocks: the sizes it is built from, token vectors, the walk, the last norm, the logits.

A family is its block: what it computes, which fields of config.json say how, and what the hub calls its weights. One
whose layers are of two kinds, some dense and the others with routed experts, has two blocks, and each kind of layer
lies in a stack of its own; layers keep their indices, and so their pages.
"""

import itertools
from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

import jax
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
    # Decoders that were made into encoders say false, and the hub's library then hides no token from any.
    fields.require("is_causal", True)
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


class HiddenStates(Protocol):
    """How what each token has, [..., T, N], lies on the devices: between layers, and where all of it is wanted."""

    def split(self, x: Array) -> Array: ...

    def whole(self, x: Array) -> Array: ...


class WholeHiddenStates:
    """On every device all of them; on a mesh some steps do otherwise (see sequence_parallel.py)."""

    def split(self, x: Array) -> Array:
        return x

    def whole(self, x: Array) -> Array:
        return x


DENSE, LAYERS = "dense_layers", "layers"  # the stacks, as attributes of a Decoder


@dataclass(frozen=True, slots=True)
class Run:
    """Layers of one kind, one after another."""

    stack: str
    part: range  # of its stack
    first: int  # the index of the first of them in the model

    def until(self, layers: Collection[int]) -> "list[Run]":
        """The same in parts, so that each of `layers` that it has is the first of one."""
        cuts = [self.first, *sorted(layer for layer in layers if self.first < layer < self.first + len(self.part))]
        ends = [*cuts[1:], self.first + len(self.part)]
        return [
            Run(self.stack, self.part[begin - self.first : end - self.first], begin)
            for begin, end in zip(cuts, ends, strict=True)
        ]


def runs_of(layers: int, dense: Collection[int]) -> list[Run]:
    """The runs that make up `layers` layers, of which those of `dense` are dense."""
    runs: list[Run] = []
    walked = {DENSE: 0, LAYERS: 0}
    for stack, indices in groupby(range(layers), lambda layer: DENSE if layer in dense else LAYERS):
        run = list(indices)
        runs.append(Run(stack, range(walked[stack], walked[stack] + len(run)), run[0]))
        walked[stack] += len(run)
    return runs


class Decoder(nnx.Module):
    """A Model (see interface.py) of blocks that `block` makes, and `dense_block` for the layers of `dense`."""

    def __init__(
        self,
        init: WeightInit,
        sizes: DecoderSizes,
        rope: AnyRope,
        block: Callable[[WeightInit], nnx.Module],
        *,
        dense: Collection[int] = (),  # not all of the layers
        dense_block: Callable[[WeightInit], nnx.Module] | None = None,
        norm: Norm = RMSNorm,
        embedding_scale: float | None = None,  # on token vectors, not on tied logits
        logit_cap: float | None = None,  # logits become cap * tanh(logits / cap)
    ) -> None:
        self.embedding = Embedding(init, sizes.vocab_size, sizes.d, embedding_scale)
        self.runs = tuple(runs_of(sizes.layers, dense))
        self.dense_layers = None if dense_block is None or not dense else init.layers(len(dense), dense_block)
        self.layers = init.layers(sizes.layers - len(dense), block)
        self.norm = norm(init, sizes.d, sizes.eps)
        self.head = None if sizes.tied else Head(init, sizes.d, sizes.vocab_size)
        self.rope = rope
        self.logit_cap = logit_cap
        self.on_mesh: HiddenStates = WholeHiddenStates()
        self.begins = self.ends = True  # a stage of a pipeline may lack the token vectors, or the last norm

    def __call__(self, token_ids: Array, positions: Array, cache: Cache, attend: Attend) -> tuple[Array, Cache]:
        """token_ids [T], or hidden [T, D] of the stage before, and positions [T] -> (hidden [T, D], cache)."""
        hidden, cache, _ = self._walk(token_ids, positions, cache, attend, ())
        return hidden, cache

    def with_states(
        self, token_ids: Array, positions: Array, cache: Cache, attend: Attend, layers: tuple[int, ...]
    ) -> tuple[Array, Cache, Array]:
        """As a call, and beside it [T, n * D]: what enters each of the n `layers`, which ascend, one after another; the
        number of layers stands for what leaves the last one."""
        hidden, cache, states = self._walk(token_ids, positions, cache, attend, layers)
        return hidden, cache, jnp.concatenate(states, axis=-1)

    def _walk(
        self, token_ids: Array, positions: Array, cache: Cache, attend: Attend, watched: tuple[int, ...]
    ) -> tuple[Array, Cache, list[Array]]:
        # Left to XLA, each device would turn its own tokens and ask the others for theirs in every layer.
        rotations = jax.tree.map(self.on_mesh.whole, self.rope.at(positions))

        def body(block: Block, carry: tuple[Array, Cache], layer: Array | int) -> tuple[Array, Cache]:
            x, cache = block(*carry, layer, rotations, attend)
            return self.on_mesh.split(x), cache

        x = self.embedding(token_ids) if self.begins else token_ids
        carry = (self.on_mesh.split(x), cache)
        states: list[Array] = []
        for run in itertools.chain.from_iterable(whole.until(watched) for whole in self.runs):
            if run.first in watched:
                states.append(self.on_mesh.whole(carry[0]))
            carry = walk_layers(getattr(self, run.stack), carry, body, part=run.part, first=run.first)
        x, cache = carry
        if len(states) < len(watched):
            states.append(self.on_mesh.whole(x))
        return self.on_mesh.whole(self.norm(x) if self.ends else x), cache, states

    def logits(self, hidden: Array) -> Array:  # [N, D] -> [N, V] float32
        logits = self.embedding.logits(hidden) if self.head is None else self.head(hidden)
        return logits if self.logit_cap is None else self.logit_cap * jnp.tanh(logits / self.logit_cap)


def decoder_tensors(
    sizes: DecoderSizes, of_block: Callable[[str, Places], Tensors], dense: Collection[int] = ()
) -> Tensors:
    """The hub's names for a Decoder's weights; `of_block` gives those of one block, from the prefix of its names.

    The places of a layer of `dense` have the stack DENSE.
    """
    top = sizes.places()
    table: Tensors = {
        "model.embed_tokens.weight": top.put("embedding.table", "VD"),
        "model.norm.weight": top.put("norm.scale", "D"),
        "lm_head.weight": None if sizes.tied else top.put("head.weight", "VD -> DV"),
        "model.rotary_emb.inv_freq": None,
    }
    for run in runs_of(sizes.layers, dense):
        for layer, place in enumerate(run.part, run.first):
            table |= of_block(f"model.layers.{layer}.", top.of_layer(place, run.stack))
            table[f"model.layers.{layer}.self_attn.rotary_emb.inv_freq"] = None  # in some files; computed here
    return table
