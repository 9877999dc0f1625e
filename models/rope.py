"""Rotary positions (Su et al., arXiv 2104.09864), the half-rotated form that hub checkpoints use, and their scaling kinds.

Every kind comes down to one vector of inverse frequencies [C/2] and one factor on the rotated vectors, both fixed when
the program is traced. `rope_scaling` (or `rope_parameters`, its newer name) of config.json says which kind.
"""

import math
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

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


def make_rope(head_dim: int, theta: float, max_position: int, scaling: dict[str, Any] | None) -> Rope:
    """The rope that `scaling` describes. Raises ValueError for a kind that is not known, KeyError for a missing field."""
    scaling = scaling or {}
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    theta = float(scaling.get("rope_theta", theta))
    rotary = int(head_dim * float(scaling.get("partial_rotary_factor", 1.0)))
    plain = 1.0 / theta ** (np.arange(0, rotary, 2, dtype=np.float64) / rotary)
    if kind == "default":
        return _rope(plain)
    if kind == "linear":
        return _rope(plain / float(scaling["factor"]))
    if kind == "llama3":
        return _rope(_llama3(plain, scaling))
    if kind == "yarn":
        return _rope(*_yarn(plain, rotary, theta, max_position, scaling))
    if kind == "dynamic":
        # It departs from the plain form only beyond max_position_embeddings, where the engine's window ends anyway.
        return _rope(plain)
    raise ValueError(f"rope type {kind!r} is not offered; there are {', '.join(KINDS)}")


def _rope(frequencies: np.ndarray, factor: float = 1.0) -> Rope:
    return Rope(inverse_frequencies=tuple(float(f) for f in frequencies.astype(np.float32)), factor=factor)


def _llama3(plain: np.ndarray, scaling: dict[str, Any]) -> np.ndarray:
    """Long wavelengths are stretched by `factor`, short ones kept, those between blended (Llama 3.1's release)."""
    factor, low, high = (float(scaling[k]) for k in ("factor", "low_freq_factor", "high_freq_factor"))
    original = float(scaling["original_max_position_embeddings"])
    wavelength = 2 * math.pi / plain
    blend = (original / wavelength - low) / (high - low)
    blended = (1 - blend) * plain / factor + blend * plain
    return np.where(wavelength > original / low, plain / factor, np.where(wavelength < original / high, plain, blended))


def _yarn(
    plain: np.ndarray, rotary: int, theta: float, max_position: int, scaling: dict[str, Any]
) -> tuple[np.ndarray, float]:
    """Interpolates low frequencies, keeps high ones, ramps between (Peng et al., arXiv 2309.00071)."""
    original = float(scaling.get("original_max_position_embeddings") or max_position)
    factor = float(scaling.get("factor") or max_position / original)
    fast, slow = float(scaling.get("beta_fast") or 32), float(scaling.get("beta_slow") or 1)

    def dimension(rotations: float) -> float:
        return rotary * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension(fast), dimension(slow)
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotary - 1)
    ramp = np.clip((np.arange(rotary // 2) - low) / max(high - low, 0.001), 0, 1)
    frequencies = plain / factor * ramp + plain * (1 - ramp)

    def magnitude(scale: float, weight: float = 1.0) -> float:
        return 0.1 * weight * math.log(scale) + 1.0 if scale > 1 else 1.0

    attention = scaling.get("attention_factor")
    if attention is None:
        weight, weight_all = scaling.get("mscale"), scaling.get("mscale_all_dim")
        if weight and weight_all:
            attention = magnitude(factor, float(weight)) / magnitude(factor, float(weight_all))
        else:
            attention = magnitude(factor)
    return frequencies, float(attention)
