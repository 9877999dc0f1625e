"""Rotary positions (Su et al., arXiv 2104.09864), in the half-rotated form of hub checkpoints, and their scaling kinds.

Every kind comes down to one vector of inverse frequencies [C/2] and one factor on the rotated vectors, both fixed when
the program is traced. `rope_scaling` (or `rope_parameters`, its newer name) of config.json says which kind.
"""

import math
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import Array

from models.fields import Fields

FIELDS = (
    *("type", "rope_type", "rope_theta", "partial_rotary_factor", "factor", "original_max_position_embeddings"),
    *("low_freq_factor", "high_freq_factor"),  # llama3
    *("beta_fast", "beta_slow", "truncate", "attention_factor", "mscale", "mscale_all_dim"),  # yarn
)
KINDS = ("default", "linear", "dynamic", "yarn", "llama3")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """Ready to apply: inverse frequencies and the factor on cos and sin."""

    inverse_frequencies: tuple[float, ...]  # rotary_dim / 2 of them
    factor: float = 1.0

    def __call__(self, x: Array, positions: Array) -> Array:  # [T, ..., C], [T] -> [T, ..., C]
        angles = positions.astype(jnp.float32)[:, None] * jnp.asarray(self.inverse_frequencies, jnp.float32)
        shape = (x.shape[0],) + (1,) * (x.ndim - 2) + (angles.shape[1],)
        cos = (jnp.cos(angles) * self.factor).reshape(shape)
        sin = (jnp.sin(angles) * self.factor).reshape(shape)
        rotary = 2 * angles.shape[1]
        first, second = jnp.split(x[..., :rotary].astype(jnp.float32), 2, axis=-1)
        turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)
        return turned if rotary == x.shape[-1] else jnp.concatenate([turned, x[..., rotary:]], axis=-1)


def read_rope(fields: Fields, head_dim: int, max_position: int) -> Rope:
    """The rope that config.json describes, for heads of `head_dim`. Raises CheckpointError naming the field."""
    scaling = fields.section("rope_parameters" if "rope_parameters" in fields else "rope_scaling")
    scaling.only(FIELDS)
    theta = scaling.positive("rope_theta", fields.positive("rope_theta", 10000.0))
    kind = scaling.string("rope_type", scaling.string("type", "default"))
    rotary = _rotary_dim(fields, scaling, head_dim)
    # In float32, as where these models were trained: a rounding more or less is 0.01 radian at position 10^5.
    plain = np.float32(1) / np.float32(theta) ** (np.arange(0, rotary, 2, dtype=np.float32) / np.float32(rotary))
    if kind == "default":
        return _rope(plain)
    if kind == "dynamic":
        # It departs from the plain form only beyond max_position_embeddings, where the engine's window ends anyway.
        return _rope(plain)
    if kind == "linear":
        return _rope(plain / scaling.positive("factor"))
    # Some families keep this one field beside the others, and there it has precedence.
    original = fields.positive(
        "original_max_position_embeddings", scaling.positive("original_max_position_embeddings", max_position)
    )
    if kind == "llama3":
        return _rope(_llama3(plain, original, scaling))
    if kind == "yarn":
        return _rope(*_yarn(plain, theta, original, max_position, scaling))
    raise scaling.error("rope_type" if "rope_type" in scaling else "type", f"one of {', '.join(KINDS)}")


def _rotary_dim(fields: Fields, scaling: Fields, head_dim: int) -> int:
    """How many of a head's dimensions turn."""
    share = scaling.positive("partial_rotary_factor", fields.positive("partial_rotary_factor", 1.0))
    rotary = int(head_dim * share)
    if not 2 <= rotary <= head_dim or rotary % 2:
        raise fields.error("partial_rotary_factor", f"a share of head_dim {head_dim} that is an even number")
    return rotary


def _rope(frequencies: np.ndarray, factor: float = 1.0) -> Rope:
    return Rope(inverse_frequencies=tuple(float(f) for f in frequencies.astype(np.float32)), factor=factor)


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
