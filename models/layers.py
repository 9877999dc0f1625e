"""The pieces that families share. Each takes what it needs as arguments; none knows a family's name.

A weight is declared once, by `WeightInit.weight`: its shape, the logical name of each dimension (which
sharding/rules.py maps to mesh axes), and the fan-in that scales its random init.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from models.adapted_array import AdaptedArray
from models.interface import LayerForm
from models.quantized_array import QuantizedArray
from pallas_kernels.dispatch import DenseMatmul

Axes = tuple[str | None, ...]  # the logical name of each dimension


class WeightInit:
    """Draws a module's random weights one after another, from one seed, in one dtype; or only declares them.

    numpy draws: jax would compile a program for each shape.
    """

    def __init__(self, dtype: Any, seed: int | None = 0, *, layers: LayerForm = "stacked") -> None:
        """Without a seed the weights are jax.ShapeDtypeStructs. `layers` is the form that `self.layers` makes."""
        self._dtype = jnp.dtype(dtype)
        self._random = None if seed is None else np.random.default_rng(seed)
        self._form: LayerForm = layers
        self._stack: int | None = None  # L, for weights of a stacked block

    def layers(self, count: int, block: Callable[["WeightInit"], nnx.Module]) -> nnx.Module:
        """`count` blocks: one whose leaves are stacked, or an nnx.List."""
        if self._form == "list":
            return nnx.List([block(self) for _ in range(count)])
        self._stack = count
        stacked = block(self)
        self._stack = None
        return stacked

    def weight(self, shape: tuple[int, ...], axes: Axes, fan_in: int, summed: tuple[int, ...] = ()) -> nnx.Param:
        """Normal with standard deviation 1/sqrt(fan_in).

        `summed` are the dimensions that products with this weight sum over, where it may be kept in fewer bits (see
        quantization.py): such a weight is read as `weight[...]` and multiplied by `contract`.
        """

        def draw(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
            return random.standard_normal(shape, np.float32) / np.float32(math.sqrt(fan_in))

        return self._param(shape, axes, draw, summed=summed)

    def ones(self, shape: tuple[int, ...], axes: Axes) -> nnx.Param:
        return self._param(shape, axes, lambda _, shape: np.ones(shape, np.float32))

    def zeros(self, shape: tuple[int, ...], axes: Axes, dtype: Any = None) -> nnx.Param:
        """`dtype` is for a weight that has its own, whatever the model's is."""
        return self._param(shape, axes, lambda _, shape: np.zeros(shape, np.float32), dtype)

    def _param(
        self,
        shape: tuple[int, ...],
        axes: Axes,
        draw: Callable[[np.random.Generator, tuple[int, ...]], np.ndarray],
        dtype: Any = None,
        summed: tuple[int, ...] = (),
    ) -> nnx.Param:
        dtype = self._dtype if dtype is None else jnp.dtype(dtype)
        if self._stack is not None:
            shape, axes = (self._stack, *shape), ("layers", *axes)
        if self._random is None:
            return nnx.Param(jax.ShapeDtypeStruct(shape, dtype), axes=axes, summed=summed)
        return nnx.Param(jax.device_put(draw(self._random, shape).astype(dtype)), axes=axes, summed=summed)


Matmul = Callable[[Array, Array], Array]  # see dispatch.DenseMatmul


def contract(spec: str, x: Array, weight: Array | QuantizedArray | AdaptedArray, matmul: Matmul | None = None) -> Array:
    """An einsum of activations with a weight: summed in float32, returned in x's dtype. Every projection goes through
    here. `matmul` multiplies where the einsum is x [T, ...] with a weight whose first dimensions are all summed.

    Without float32 sums XLA:CPU converts the whole bfloat16 weight to float32 first, and on every call.
    """
    if isinstance(weight, AdaptedArray):
        return weight.added(x, contract(spec, x, weight.weight, matmul))
    if isinstance(weight, QuantizedArray):
        return weight.contract(spec, x)
    if matmul is not None:
        rows = len(spec.partition(",")[0]) - 1  # dimensions of the weight that are summed
        columns = weight.shape[rows:]
        flat = matmul(x.reshape(x.shape[0], -1), weight.reshape(-1, math.prod(columns)))
        return flat.reshape(x.shape[0], *columns).astype(x.dtype)
    if spec == "thc,hcd->td":
        # Two contracted dimensions would make XLA:CPU transpose the weight on every call; one does not.
        spec, x, weight = "ti,id->td", x.reshape(x.shape[0], -1), weight.reshape(-1, weight.shape[-1])
    return jnp.einsum(spec, x, weight, preferred_element_type=jnp.float32).astype(x.dtype)


Contract = Callable[[str, Array, Any], Array]


def over_rms(x: Array, eps: float, axes: int | tuple[int, ...] = -1) -> Array:
    """x / rms(x) over `axes`, in float32 (Zhang and Sennrich, arXiv 1910.07467)."""
    wide = x.astype(jnp.float32)
    return wide * jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=axes, keepdims=True) + eps)


class Norm(Protocol):
    """A class of norms over the last dimension."""

    def __call__(
        self, init: WeightInit, width: int, eps: float, axis: str | None = "model"
    ) -> Callable[[Array], Array]: ...


class RMSNorm(nnx.Module):
    """x / rms(x) * scale."""

    def __init__(self, init: WeightInit, width: int, eps: float, axis: str | None = "model") -> None:
        self.scale = init.ones((width,), (axis,))
        self.eps = eps

    def __call__(self, x: Array) -> Array:  # [..., width]
        return over_rms(x, self.eps).astype(x.dtype) * self.scale[...]


class OffsetRMSNorm(nnx.Module):
    """x / rms(x) * (1 + scale): the weight is kept as its difference from 1, and applied before rounding."""

    def __init__(self, init: WeightInit, width: int, eps: float, axis: str | None = "model") -> None:
        self.scale = init.zeros((width,), (axis,))
        self.eps = eps

    def __call__(self, x: Array) -> Array:  # [..., width]
        return (over_rms(x, self.eps) * (1 + self.scale[...].astype(jnp.float32))).astype(x.dtype)


class AllHeadsRMSNorm(nnx.Module):
    """x / rms(x) * scale over all heads of a token at once, applied before rounding."""

    def __init__(self, init: WeightInit, heads: int, c: int, eps: float, axis: str) -> None:
        self.scale = init.ones((heads, c), (axis, None))
        self.eps = eps

    def __call__(self, x: Array) -> Array:  # [T, heads, C]
        return (over_rms(x, self.eps, (-2, -1)) * self.scale[...].astype(jnp.float32)).astype(x.dtype)


class GroupedQKV(nnx.Module):
    """One fused projection to q, k and v, laid out by KV head: [D, K, G + 2, C].

    Each KV head lies beside the G query heads that read it, so that one split over K shards all three alike.
    """

    def __init__(self, init: WeightInit, d: int, k: int, g: int, c: int, *, bias: bool) -> None:
        self.weight = init.weight((d, k, g + 2, c), ("model", "kv_heads", "queries_key_value", None), d, summed=(0,))
        self.bias = init.zeros((k, g + 2, c), ("kv_heads", "queries_key_value", None)) if bias else None
        self.contract_columns: Contract = contract  # on a mesh: see sequence_parallel.py

    def __call__(self, x: Array) -> tuple[Array, Array, Array]:  # [T, D] -> q [T, H, C], k [T, K, C], v [T, K, C]
        fused = self.contract_columns("td,dkgc->tkgc", x, self.weight[...])
        if self.bias is not None:
            fused += self.bias[...]
        queries = fused[:, :, :-2]
        return queries.reshape(x.shape[0], -1, fused.shape[-1]), fused[:, :, -2], fused[:, :, -1]


class AttentionOutput(nnx.Module):
    """From the heads back to the model's width."""

    def __init__(self, init: WeightInit, h: int, c: int, d: int, *, bias: bool) -> None:
        self.weight = init.weight((h, c, d), ("heads", None, "model"), fan_in=h * c, summed=(0, 1))
        self.bias = init.zeros((d,), ("model",)) if bias else None
        self.contract_rows: Contract = contract  # on a mesh: see sequence_parallel.py

    def __call__(self, x: Array) -> Array:  # [T, H, C] -> [T, D]
        out = self.contract_rows("thc,hcd->td", x, self.weight[...])
        return out if self.bias is None else out + self.bias[...]


class GatedMLP(nnx.Module):
    """down(activation(gate(x)) * up(x)) (Shazeer, arXiv 2002.05202); gate and up are one fused weight [D, 2, F]."""

    def __init__(
        self, init: WeightInit, d: int, f: int, activation: Callable[[Array], Array], *, bias: bool = False
    ) -> None:
        self.gate_up = init.weight((d, 2, f), ("model", None, "mlp"), fan_in=d, summed=(0,))
        self.down = init.weight((f, d), ("mlp", "model"), fan_in=f, summed=(0,))
        self.gate_up_bias = init.zeros((2, f), (None, "mlp")) if bias else None
        self.down_bias = init.zeros((d,), ("model",)) if bias else None
        self.activation = activation
        self.contract_columns: Contract = contract
        self.contract_rows: Contract = contract

    def __call__(self, x: Array) -> Array:  # [T, D] -> [T, D]
        fused = self.contract_columns("td,dnf->tnf", x, self.gate_up[...])
        if self.gate_up_bias is not None:
            fused += self.gate_up_bias[...]
        out = self.contract_rows("tf,fd->td", self.activation(fused[:, 0]) * fused[:, 1], self.down[...])
        return out if self.down_bias is None else out + self.down_bias[...]


class Embedding(nnx.Module):
    """Token vectors [V, D], and the logits where they are tied to the output."""

    def __init__(self, init: WeightInit, v: int, d: int, scale: float | None = None) -> None:
        self.table = init.weight((v, d), ("vocab", "model"), fan_in=d)
        self.matmul: Matmul = partial(jnp.einsum, "nd,vd->nv", preferred_element_type=jnp.float32)
        self.scale = scale  # of the vectors, rounded to their dtype as where these models were trained

    def __call__(self, token_ids: Array) -> Array:  # [T] -> [T, D]
        x = self.table[...][token_ids]
        return x if self.scale is None else x * jnp.asarray(self.scale, x.dtype)

    def logits(self, hidden: Array) -> Array:  # [N, D] -> [N, V]
        return self.matmul(hidden, self.table[...])


class Head(nnx.Module):
    """Logits from their own weight [D, V]."""

    def __init__(self, init: WeightInit, d: int, v: int) -> None:
        self.weight = init.weight((d, v), ("model", "vocab"), fan_in=d)

        self.matmul: Matmul = partial(jnp.dot, preferred_element_type=jnp.float32)

    def __call__(self, hidden: Array) -> Array:  # [N, D] -> [N, V]
        return self.matmul(hidden, self.weight[...])


def use_matmul(model: Any, matmul: DenseMatmul) -> None:
    """From here on the model's projections and logits are that body's, on one device; decided once, at load."""
    own = partial(contract, matmul=matmul.plain)
    for _, module in nnx.iter_modules(model):
        if isinstance(module, GroupedQKV | GatedMLP):
            module.contract_columns = own
        if isinstance(module, AttentionOutput | GatedMLP):
            module.contract_rows = own
        if isinstance(module, Head):
            module.matmul = matmul.plain
        if isinstance(module, Embedding):
            module.matmul = matmul.transposed
