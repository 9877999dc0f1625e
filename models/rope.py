"""Rotary positions (Su et al., arXiv 2104.09864) and their scaling kinds.

Every kind comes down to one vector of inverse frequencies [C/2] and one factor on the rotated vectors, both fixed when
the program is traced. `rope_scaling` (or `rope_parameters`, its newer name) of config.json says which kind.

    Rope          one for all layers
    LayerRopes    one of several for each layer
    LongRope      two, of which one is chosen when a model is loaded
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from models.fields import Fields

LONGROPE = ("short_factor", "long_factor")
FIELDS = (
    *("type", "rope_type", "rope_theta", "partial_rotary_factor", "factor", "original_max_position_embeddings"),
    *("low_freq_factor", "high_freq_factor"),  # llama3
    *("beta_fast", "beta_slow", "truncate", "attention_factor", "mscale", "mscale_all_dim"),  # yarn
    "finetuned",  # of the model, says yarn's own release: it changes nothing
    *LONGROPE,
)
NAMES_OF_KIND = ("rope_type", "type")
KINDS = ("default", "linear", "dynamic", "yarn", "llama3", "longrope")


class Rotation(Protocol):
    """Turns x [T, ..., C] by the positions of its tokens."""

    def __call__(self, x: Array) -> Array: ...


class Rotations(Protocol):
    """What turns the heads of each layer."""

    def of(self, layer: Array | int) -> Rotation: ...


class AnyRope(Protocol):
    """Any class of this file."""

    def at(self, positions: Array) -> Rotations:
        """positions [T]; computed once a step, for all layers."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """Ready to apply: inverse frequencies and the factor on cos and sin."""

    inverse_frequencies: tuple[float, ...]  # rotary_dim / 2 of them
    factor: float = 1.0
    interleaved: bool = False  # dimensions 2i and 2i + 1 turn together, not i and i + rotary_dim / 2

    def at(self, positions: Array) -> "Turn":
        angles = positions.astype(jnp.float32)[:, None] * jnp.asarray(self.inverse_frequencies, jnp.float32)
        return Turn(jnp.cos(angles) * self.factor, jnp.sin(angles) * self.factor, self.interleaved)

    def __call__(self, x: Array, positions: Array) -> Array:  # [T, ..., C], [T] -> [T, ..., C]
        return self.at(positions)(x)


@partial(jax.tree_util.register_dataclass, data_fields=("cos", "sin"), meta_fields=("interleaved",))
@dataclass(frozen=True, slots=True)
class Turn:
    """A rope at the positions of a step: a Rotation, the same of every layer."""

    cos: Array  # [T, rotary_dim / 2] float32
    sin: Array
    interleaved: bool

    def of(self, layer: Array | int) -> "Turn":
        return self

    def __call__(self, x: Array) -> Array:
        shape = (x.shape[0],) + (1,) * (x.ndim - 2) + (self.cos.shape[1],)
        cos, sin = self.cos.reshape(shape), self.sin.reshape(shape)
        rotary = 2 * self.cos.shape[1]
        wide = x[..., :rotary].astype(jnp.float32)
        first, second = (wide[..., ::2], wide[..., 1::2]) if self.interleaved else jnp.split(wide, 2, axis=-1)
        pair = [first * cos - second * sin, second * cos + first * sin]
        turned = jnp.stack(pair, axis=-1).reshape(wide.shape) if self.interleaved else jnp.concatenate(pair, axis=-1)
        turned = turned.astype(x.dtype)
        return turned if rotary == x.shape[-1] else jnp.concatenate([turned, x[..., rotary:]], axis=-1)


@dataclass(frozen=True, slots=True)
class LayerRopes:
    """Several ropes of one width and form, and which of them each layer has."""

    ropes: tuple[Rope, ...]
    choice: tuple[int, ...]  # [L]

    def at(self, positions: Array) -> "LayerTurns":
        turns = [rope.at(positions) for rope in self.ropes]
        cos, sin = jnp.stack([turn.cos for turn in turns]), jnp.stack([turn.sin for turn in turns])
        return LayerTurns(cos, sin, turns[0].interleaved, self.choice)


@partial(jax.tree_util.register_dataclass, data_fields=("cos", "sin"), meta_fields=("interleaved", "choice"))
@dataclass(frozen=True, slots=True)
class LayerTurns:
    cos: Array  # [ropes, T, rotary_dim / 2] float32
    sin: Array
    interleaved: bool
    choice: tuple[int, ...]

    def of(self, layer: Array | int) -> Turn:
        """A traced layer chooses on the device, so that a scanned block serves every layer."""
        rope = self.choice[layer] if isinstance(layer, int) else jnp.asarray(self.choice)[layer]
        return Turn(self.cos[rope], self.sin[rope], self.interleaved)


@dataclass(frozen=True, slots=True, kw_only=True)
class LongRope:
    """One rope for sequences of up to `original` tokens, another for longer ones (Ding et al., arXiv 2402.13753).

    A key lies in its page as it was turned, and a sequence that grows past `original` cannot turn its pages again; a
    page shared by prefix would have to be of both kinds. So one rope serves a whole deployment, the one that is right
    for its longest sequence: exact up to `original` where max_length ends there, and past `original` where it does not.
    """

    short: Rope
    long: Rope
    original: int
    max_length: int  # of a sequence, prompt and output together

    def at(self, positions: Array) -> Turn:
        return (self.long if self.max_length > self.original else self.short).at(positions)


def use_max_length(model: Any, max_length: int) -> None:
    """Chooses the rope of a model that has a LongRope; decided once, at load."""
    for _, module in nnx.iter_modules(model):
        rope = getattr(module, "rope", None)
        if isinstance(rope, LongRope):
            cast(Any, module).rope = replace(rope, max_length=max_length)


def read_rope(
    fields: Fields,
    head_dim: int,
    max_position: int,
    *,
    theta: float = 10000.0,  # where config.json has none
    share: float | None = None,  # partial_rotary_factor, where config.json has none
    interleaved: bool = False,
) -> Rope | LongRope:
    """The rope that config.json describes, for heads of `head_dim`. Raises CheckpointError naming the field.

    Without `share` whole heads turn: the hub's library does not read partial_rotary_factor for that architecture.
    """
    reader = _Reader(head_dim, max_position, theta, share, interleaved)
    return reader.read(fields, read_scaling(fields))


def read_scaling(fields: Fields) -> Fields:
    """What config.json says of scaling, under the newer name or the older. Raises CheckpointError where both say
    something and not the same: who follows a model's page and adds the older to a new file would get no scaling."""
    newer, older = fields.section("rope_parameters"), fields.section("rope_scaling")
    if not newer.names():
        return older
    same_kind = all(name not in older for name in NAMES_OF_KIND) or _kind(newer) == _kind(older)
    if not same_kind or not newer.says_all_of(older, but=NAMES_OF_KIND):
        raise fields.error("rope_scaling", "absent beside rope_parameters, which is its newer name, or say the same")
    return newer


def _kind(scaling: Fields) -> str:
    """Raises CheckpointError where it is no string."""
    kind = scaling.string(_name_of_kind(scaling), "default")
    return "longrope" if kind == "su" else kind  # its first name


def _name_of_kind(scaling: Fields) -> str:
    return "rope_type" if "rope_type" in scaling else "type"


def read_layer_ropes(
    fields: Fields, head_dim: int, max_position: int, slides: Sequence[bool], *, theta: float, local_theta: float
) -> LayerRopes:
    """One rope for the layers that see everything and one for those that slide. Raises CheckpointError.

    Newer files nest both in rope_parameters. In older ones every scaling is of the former, and the latter have
    `rope_local_base_freq`.
    """
    reader, local_reader = (_Reader(head_dim, max_position, base) for base in (theta, local_theta))
    if fields.section("rope_parameters").names():
        nested = read_scaling(fields)
        nested.only(("full_attention", "sliding_attention"))
        ropes = (
            reader.read(fields, nested.section("full_attention")),
            local_reader.read(fields, nested.section("sliding_attention")),
        )
    else:
        local = _plain(fields.above_one("rope_local_base_freq", local_theta), head_dim)
        ropes = (reader.read(fields, fields.section("rope_scaling")), local_reader.ready(local))
    everywhere, sliding = ropes
    if isinstance(everywhere, LongRope) or isinstance(sliding, LongRope):
        raise fields.error("rope_parameters", "without longrope where layers have ropes of their own")
    return LayerRopes((everywhere, sliding), tuple(int(slide) for slide in slides))


@dataclass(frozen=True, slots=True)
class _Reader:
    head_dim: int
    max_position: int
    theta: float
    share: float | None = None
    interleaved: bool = False

    def read(self, fields: Fields, scaling: Fields) -> Rope | LongRope:
        scaling.only(FIELDS)
        theta = scaling.above_one("rope_theta", fields.above_one("rope_theta", self.theta))
        named, kind = _name_of_kind(scaling), _kind(scaling)
        for name in LONGROPE:
            if name in scaling and kind != "longrope":
                raise scaling.error(named, f"longrope, as {name} is there")
        rotary = self._rotary_dim(fields, scaling)
        plain = _plain(theta, rotary)
        if kind == "default":
            return self.ready(plain)
        if kind == "dynamic":
            # It departs from the plain form only beyond max_position_embeddings, where the engine's window ends anyway.
            return self.ready(plain)
        if kind == "linear":
            return self.ready(plain / scaling.positive("factor"))
        # Some families keep this one field beside the others, and there it has precedence.
        original = fields.above_one(
            "original_max_position_embeddings",
            scaling.above_one("original_max_position_embeddings", self.max_position),
        )
        if kind == "llama3":
            return self.ready(_llama3(plain, original, scaling))
        if kind == "yarn":
            return self.ready(*_yarn(plain, theta, original, self.max_position, scaling))
        if kind == "longrope":
            return self._longrope(plain, original, scaling)
        raise scaling.error(named, f"one of {', '.join(KINDS)}")

    def _rotary_dim(self, fields: Fields, scaling: Fields) -> int:
        """How many of a head's dimensions turn."""
        if self.share is None:
            for section in (fields, scaling):
                section.require("partial_rotary_factor", 1.0)
        share = scaling.positive(
            "partial_rotary_factor", fields.positive("partial_rotary_factor", 1.0 if self.share is None else self.share)
        )
        rotary = int(self.head_dim * share)
        if not 2 <= rotary <= self.head_dim or rotary % 2:
            raise fields.error("partial_rotary_factor", f"a share of head_dim {self.head_dim} that is an even number")
        return rotary

    def _longrope(self, plain: np.ndarray, original: float, scaling: Fields) -> LongRope:
        stretch = scaling.positive("factor", self.max_position / original)
        factor = math.sqrt(1 + math.log(stretch) / math.log(original)) if stretch > 1 else 1.0
        factor = scaling.positive("attention_factor", factor)
        short, long = (
            self.ready(plain / np.array(scaling.positives(name, count=len(plain)), np.float32), factor)
            for name in LONGROPE
        )
        return LongRope(short=short, long=long, original=int(original), max_length=self.max_position)

    def ready(self, frequencies: np.ndarray, factor: float = 1.0) -> Rope:
        numbers = tuple(float(number) for number in frequencies.astype(np.float32))
        return Rope(inverse_frequencies=numbers, factor=factor, interleaved=self.interleaved)


def _plain(theta: float, rotary: int) -> np.ndarray:
    """In float32, as where these models were trained: a rounding more or less is 0.01 radian at position 10^5."""
    return np.float32(1) / np.float32(theta) ** (np.arange(0, rotary, 2, dtype=np.float32) / np.float32(rotary))


def _llama3(plain: np.ndarray, original: float, scaling: Fields) -> np.ndarray:
    """Long wavelengths are stretched by `factor`, short ones kept, those between blended (Llama 3.1's release)."""
    factor, low, high = (scaling.positive(name) for name in ("factor", "low_freq_factor", "high_freq_factor"))
    if high <= low:
        raise scaling.error("high_freq_factor", f"above low_freq_factor, {low}")
    wavelength = 2 * math.pi / plain
    blend = (original / wavelength - low) / (high - low)
    blended = (1 - blend) * plain / factor + blend * plain
    return np.where(wavelength > original / low, plain / factor, np.where(wavelength < original / high, plain, blended))


def _yarn(
    plain: np.ndarray, theta: float, original: float, max_position: int, scaling: Fields
) -> tuple[np.ndarray, float]:
    """Interpolates low frequencies, keeps high ones, ramps between (Peng et al., arXiv 2309.00071)."""
    rotary = 2 * len(plain)
    factor = scaling.positive("factor", max_position / original)

    def dimension(rotations: float) -> float:
        return rotary * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension(scaling.positive("beta_fast", 32)), dimension(scaling.positive("beta_slow", 1))
    if scaling.boolean("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotary - 1)
    width = high - low if high != low else 0.001
    ramp = np.clip((np.arange(rotary // 2) - low) / width, 0, 1)
    return plain / factor * ramp + plain * (1 - ramp), _yarn_magnitude(factor, scaling)


def _yarn_magnitude(factor: float, scaling: Fields) -> float:
    """On cos and sin both, so that its square is on the scores."""
    if "attention_factor" in scaling:
        return scaling.positive("attention_factor")

    def magnitude(weight: float = 1.0) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    # 0 counts as missing: checkpoints say so where they mean neither.
    weight, weight_all = scaling.number("mscale", 0), scaling.number("mscale_all_dim", 0)
    return magnitude(weight) / magnitude(weight_all) if weight and weight_all else magnitude()
