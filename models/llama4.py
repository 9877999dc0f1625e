"""Llama 4, the text models (Meta, Llama 4 Scout and Maverick).

Three of four layers see their own chunk of positions and turn queries and keys, which are then normed without a
weight. The fourth sees everything and knows no positions; its queries grow with theirs (Nakanishi, arXiv 2501.19399).
All layers, or every second one, have routed experts and a shared one; an expert's weight is on what goes into it.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from models.decoder import DENSE, Decoder, DecoderSizes, decoder_tensors, read_sizes
from models.fields import Fields
from models.hub import Places, Tensors
from models.interface import Attend, Cache, LayerForm, ModelShape
from models.layers import AttentionOutput, GatedMLP, GroupedQKV, RMSNorm, WeightInit, over_rms
from models.moe import RoutedExperts, RouterRule, read_experts
from models.rope import AnyRope, LongRope, Rope, Rotations, Turn, read_rope
from models.windows import FULL, Windows
from pallas_kernels.ragged import AttentionOptions

architectures = ("Llama4ForCausalLM",)
CHUNKED = "chunked_attention"


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionRules:
    """What positions do to queries and keys: an AnyRope whose layers differ."""

    rope: Rope
    turns: tuple[bool, ...]  # [L]: the layers that have a rope
    norm_eps: float | None  # of the norm behind it; None: there is none
    floor: int | None  # positions within which the other layers' queries do not grow; None: they never do
    growth: float

    def at(self, positions: Array) -> "PositionedLayers":
        temperature = jnp.ones(positions.shape, jnp.float32)
        if self.floor is not None:
            steps = jnp.floor((positions.astype(jnp.float32) + 1) / self.floor)
            temperature += self.growth * jnp.log1p(steps)
        return PositionedLayers(self, self.rope.at(positions), temperature)


@dataclass(frozen=True, slots=True)
class PositionedLayers:
    """PositionRules at the positions of a step."""

    rules: PositionRules
    turn: Turn
    temperature: Array  # [T]

    def of(self, layer: Array | int) -> Turn:
        """A Turn that does nothing in the layers without a rope. A traced layer chooses on the device."""
        turns = self._turns(layer)
        return replace(self.turn, cos=jnp.where(turns, self.turn.cos, 1), sin=jnp.where(turns, self.turn.sin, 0))

    def applied(self, q: Array, k: Array, layer: Array | int) -> tuple[Array, Array]:
        """q [T, H, C], k [T, K, C] -> as attention takes them."""
        turn, turns, eps = self.of(layer), self._turns(layer), self.rules.norm_eps
        q, k = turn(q), turn(k)
        if eps is not None:
            q, k = (jnp.where(turns, over_rms(x, eps).astype(x.dtype), x) for x in (q, k))
        temperature = jnp.where(turns, 1, self.temperature)
        return (q * temperature[:, None, None]).astype(q.dtype), k

    def _turns(self, layer: Array | int) -> Array | bool:
        return self.rules.turns[layer] if isinstance(layer, int) else jnp.asarray(self.rules.turns)[layer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama4Config:
    sizes: DecoderSizes
    rope: AnyRope
    windows: Windows
    attention_bias: bool
    experts: int
    rule: RouterRule
    dense: tuple[int, ...]  # layers without experts
    dense_f: int


def parse(config: dict[str, Any]) -> Llama4Config:
    """Raises CheckpointError for a field that is missing or asks for what this family does not do."""
    fields = Fields(config)
    fields.require("hidden_act", "silu")
    sizes = read_sizes(fields, eps=1e-5)
    experts, top_k = read_experts(fields, "num_local_experts", experts=16, top_k=1)
    turns = _read_turns(fields, sizes.layers)
    return Llama4Config(
        sizes=sizes,
        rope=_read_positions(fields, sizes, turns),
        windows=_read_chunks(fields, turns),
        attention_bias=fields.boolean("attention_bias", False),
        experts=experts,
        rule=RouterRule(top_k=top_k, score="sigmoid", on_input=True),
        dense=_read_dense(fields, sizes.layers),
        dense_f=fields.integer("intermediate_size_mlp", 16384),
    )


def _read_turns(fields: Fields, layers: int) -> tuple[bool, ...]:
    """Which layers have a rope: no_rope_layers says 1 for those that do."""
    interval = fields.integer("no_rope_layer_interval", 4)
    named = fields.integers("no_rope_layers") or [int((layer + 1) % interval != 0) for layer in range(layers)]
    if len(named) < layers or not set(named) <= {0, 1}:
        raise fields.error("no_rope_layers", f"a list of {layers}, each 0 or 1")
    return tuple(bool(turns) for turns in named[:layers])


def _read_positions(fields: Fields, sizes: DecoderSizes, turns: tuple[bool, ...]) -> PositionRules:
    rope = read_rope(fields, sizes.head_dim, sizes.max_position, theta=500_000.0, interleaved=True)
    if isinstance(rope, LongRope):
        raise fields.error("rope_scaling", "of another kind than longrope")
    return PositionRules(
        rope=rope,
        turns=turns,
        norm_eps=sizes.eps if fields.boolean("use_qk_norm", True) else None,
        floor=fields.integer("floor_scale", 8192) if fields.boolean("attn_temperature_tuning", True) else None,
        growth=fields.number("attn_scale", 0.1),
    )


def _read_chunks(fields: Fields, turns: tuple[bool, ...]) -> Windows:
    size = None if fields.is_null("attention_chunk_size") else fields.integer("attention_chunk_size", 8192)
    kinds = fields.strings("layer_types") or [CHUNKED if turn else FULL for turn in turns]
    if len(kinds) != len(turns) or not set(kinds) <= {FULL, CHUNKED}:
        raise fields.error("layer_types", f"a list of {len(turns)}, each {FULL} or {CHUNKED}")
    return Windows(tuple(size if kind == CHUNKED else None for kind in kinds))


def _read_dense(fields: Fields, layers: int) -> tuple[int, ...]:
    """The layers that moe_layers does not name, or, without that list, all but every so many-th."""
    step = fields.integer("interleave_moe_layer_step", 1)
    routed = fields.integers("moe_layers") if "moe_layers" in fields else list(range(step - 1, layers, step))
    dense = tuple(layer for layer in range(layers) if layer not in routed)
    if len(dense) == layers:
        raise fields.error("moe_layers", "a list that has a layer of this model")
    return dense


def shape(config: Llama4Config) -> ModelShape:
    return replace(config.sizes.shape(), experts=config.experts, experts_per_token=config.rule.top_k)


def build(config: Llama4Config, dtype: Any, seed: int | None = 0, *, layers: LayerForm = "stacked") -> Decoder:
    """Random weights; without a seed, only their shapes."""
    return Decoder(
        WeightInit(dtype, seed, layers=layers),
        config.sizes,
        config.rope,
        partial(Block, config),
        dense=config.dense,
        dense_block=partial(Block, config, dense=True),
    )


class SharedAndRouted(nnx.Module):
    """Routed experts, and one that every token passes."""

    def __init__(self, config: Llama4Config, init: WeightInit) -> None:
        s = config.sizes
        self.routed = RoutedExperts(init, config.experts, s.d, s.f, config.rule)
        self.shared = GatedMLP(init, s.d, s.f, jax.nn.silu)

    def __call__(self, x: Array) -> Array:  # [T, D] -> [T, D]
        return self.routed(x) + self.shared(x)


class Block(nnx.Module):
    def __init__(self, config: Llama4Config, init: WeightInit, *, dense: bool = False) -> None:
        s = config.sizes
        self.attention_norm = RMSNorm(init, s.d, s.eps)
        self.qkv = GroupedQKV(init, s.d, s.kv_heads, s.group, s.head_dim, bias=config.attention_bias)
        self.output = AttentionOutput(init, s.heads, s.head_dim, s.d, bias=config.attention_bias)
        self.mlp_norm = RMSNorm(init, s.d, s.eps)
        self.mlp = GatedMLP(init, s.d, config.dense_f, jax.nn.silu) if dense else SharedAndRouted(config, init)
        self.options = AttentionOptions(scale=s.head_dim**-0.5, chunked=True)
        self.windows = config.windows

    def __call__(
        self, x: Array, cache: Cache, layer: Array | int, rotations: Rotations, attend: Attend
    ) -> tuple[Array, Cache]:
        assert isinstance(rotations, PositionedLayers)
        q, k, v = self.qkv(self.attention_norm(x))
        q, k = rotations.applied(q, k, layer)
        cache, out = attend(cache, layer, q, k, v, self.options, window=self.windows.of(layer))
        x += self.output(out)
        return x + self.mlp(self.mlp_norm(x)), cache


def tensors(config: Llama4Config) -> Tensors:
    """The hub's names for the weights above."""

    def of_block(at: str, block: Places) -> Tensors:
        return {
            f"{at}input_layernorm.weight": block.put("attention_norm.scale", "D"),
            f"{at}post_attention_layernorm.weight": block.put("mlp_norm.scale", "D"),
            **block.grouped_qkv(f"{at}self_attn.", "qkv", bias=config.attention_bias),
            **block.attention_output(f"{at}self_attn.", "output", bias=config.attention_bias),
            **of_mlp(f"{at}feed_forward.", block),
        }

    def of_mlp(at: str, block: Places) -> Tensors:
        if block.stack == DENSE:
            return block.with_sizes(F=config.dense_f).gated_mlp(at, "mlp", bias=False)
        experts = block.with_sizes(E=config.experts, N=2)
        return {
            f"{at}router.weight": experts.put("mlp.routed.router", "ED -> DE"),
            f"{at}experts.gate_up_proj": experts.put("mlp.routed.gate_up", "ED(NF) -> ENDF"),
            f"{at}experts.down_proj": experts.put("mlp.routed.down", "EFD"),
            **block.gated_mlp(f"{at}shared_expert.", "mlp.shared", bias=False),
        }

    return decoder_tensors(config.sizes, of_block, config.dense)
