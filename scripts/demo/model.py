"""The training forward of a small Llama: dense causal attention within dialogues, sums in float32."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from jax.experimental.layout import Layout, with_layout_constraint
from llvmlite import binding

Params = dict[str, Array]
QUERY_BLOCK = 128
STACKED = ("attention_norm", "mlp_norm", "qkv", "output", "gate_up", "down")
# Where a processor has no products of bfloat16, XLA widens each operand first, a fifth slower than float32.
FACTORS = jnp.bfloat16 if binding.get_host_cpu_features().get("avx512bf16") else jnp.float32


@dataclass(frozen=True)
class ModelConfig:
    vocab: int
    d: int = 256
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    ff: int = 704
    eps: float = 1e-5
    theta: float = 10000.0
    max_position: int = 2048


def shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Each weight with its shape; matrices are [in, out] and stacked over the layers."""
    c, layers = config, config.layers
    return {
        "embedding": (c.vocab, c.d),
        "norm": (c.d,),
        "attention_norm": (layers, c.d),
        "mlp_norm": (layers, c.d),
        "qkv": (layers, c.d, (c.heads + 2 * c.kv_heads) * c.head_dim),
        "output": (layers, c.heads * c.head_dim, c.d),
        "gate_up": (layers, c.d, 2 * c.ff),
        "down": (layers, c.ff, c.d),
    }


def initial(config: ModelConfig, seed: int) -> Params:
    """Normal weights scaled by their fan-in; those that write into the residual stream are smaller with depth."""
    rng = np.random.default_rng(seed)
    params: Params = {}
    for name, shape in shapes(config).items():
        if name.endswith("norm"):
            value = np.ones(shape)
        else:
            scale = 0.02 if name == "embedding" else shape[-2] ** -0.5
            if name in ("output", "down"):
                scale /= (2 * config.layers) ** 0.5
            value = rng.normal(size=shape) * scale
        params[name] = jnp.asarray(value, jnp.float32)
    return params


def grown(params: Params, layers: int) -> Params:
    """Weights of so many layers that compute the same: those in the middle are followed by copies that add nothing yet.

    Copies of layers learn sooner than new ones (Wu et al., arXiv 2401.02415). Raises ValueError where there are more
    layers than asked for, or fewer than half of them.
    """
    known = params["qkv"].shape[0]
    added = layers - known
    if not 0 <= added <= known:
        raise ValueError(f"{known} layers do not grow to {layers}: at least as many, at most twice as many")
    middle = (known - added + 1) // 2
    order = [(layer, copy) for layer in range(known) for copy in range(2 if middle <= layer < middle + added else 1)]
    taken = jnp.asarray([layer for layer, _ in order])
    kept = jnp.asarray([1.0 - copy for _, copy in order])
    found = dict(params)
    for name in STACKED:
        found[name] = params[name][taken]
        if name in ("output", "down"):  # what a layer adds to the residual stream
            found[name] *= kept[:, None, None]
    return found


@jax.custom_vjp
def dot(x: Array, w: Array) -> Array:
    """x [..., N, I] times w [..., I, O] of FACTORS with float32 sums, backward too: where a processor multiplies
    bfloat16 that is twice as fast."""
    return _dot(x.astype(FACTORS), w.astype(FACTORS))


def _dot(x: Array, w: Array) -> Array:
    return jnp.matmul(x, w, preferred_element_type=jnp.float32)


def _written_out(x: Array) -> Array:
    """x as it is indexed, row by row: XLA:CPU computes a product with a transposed view in float32, or not at all."""
    return with_layout_constraint(x, Layout(major_to_minor=tuple(range(x.ndim))))


def _dot_forward(x: Array, w: Array) -> tuple[Array, tuple[Array, Array]]:
    x, w = x.astype(FACTORS), w.astype(FACTORS)
    return _dot(x, w), (x, w)


def _dot_backward(saved: tuple[Array, Array], g: Array) -> tuple[Array, Array]:
    x, w = saved
    g = g.astype(FACTORS)
    return _dot(g, _written_out(w.mT)), _written_out(_dot(_written_out(x.mT), g))


dot.defvjp(_dot_forward, _dot_backward)


def rms_norm(x: Array, scale: Array, eps: float) -> Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + eps) * scale


def rotate(x: Array, positions: Array, theta: float) -> Array:
    """x [B, T, N, C], positions [B, T]: the half-rotated form of the hub's checkpoints."""
    half = x.shape[-1] // 2
    angles = positions[..., None].astype(jnp.float32) * (1.0 / theta ** (jnp.arange(half) / half))
    cos, sin = jnp.cos(angles)[:, :, None], jnp.sin(angles)[:, :, None]
    first, second = x[..., :half], x[..., half:]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


class DemoLlama(nnx.Module):
    """A Llama with tied embeddings, its weights stacked over the layers. The export gives every other Llama the same
    weights."""

    def __init__(self, config: ModelConfig, params: Params) -> None:
        self.config = config
        self.embedding = nnx.Param(params["embedding"])
        self.norm = nnx.Param(params["norm"])
        self.attention_norm = nnx.Param(params["attention_norm"])
        self.mlp_norm = nnx.Param(params["mlp_norm"])
        self.qkv = nnx.Param(params["qkv"])
        self.output = nnx.Param(params["output"])
        self.gate_up = nnx.Param(params["gate_up"])
        self.down = nnx.Param(params["down"])

    def __call__(self, tokens: Array, segments: Array, positions: Array, spots: Array) -> Array:
        """tokens, segments, positions [B, T], spots [N] of B * T -> normed hidden states of these spots [N, D]."""
        eps = self.config.eps
        x = self.embedding[...][tokens.reshape(-1)]
        for layer in range(self.config.layers):
            fused = dot(rms_norm(x, self.attention_norm[layer], eps), self.qkv[layer])
            x += dot(self._attend(fused, segments, positions), self.output[layer])
            if layer == self.config.layers - 1:
                x = x[spots]  # behind the last attention nobody asks for the others
            gate, up = jnp.split(dot(rms_norm(x, self.mlp_norm[layer], eps), self.gate_up[layer]), 2, axis=-1)
            x += dot(jax.nn.silu(gate) * up, self.down[layer])
        return rms_norm(x, self.norm[...], eps)

    def logits(self, states: Array) -> Array:
        """states [N, D] -> [N, V] float32."""
        return dot(states, self.embedding[...].T)

    def _attend(self, fused: Array, segments: Array, positions: Array) -> Array:
        """Causal attention within each segment: fused q, k and v [B * T, (H + 2 K) C] -> [B * T, H C]."""
        b, t = positions.shape
        h, k, c = self.config.heads, self.config.kv_heads, self.config.head_dim
        fused = fused.reshape(b, t, h + 2 * k, c)
        q = rotate(fused[:, :, :h], positions, self.config.theta).reshape(b, t, k, h // k, c) * c**-0.5
        q = q.transpose(0, 2, 3, 1, 4)  # [B, K, G, T, C]
        key = rotate(fused[:, :, h : h + k], positions, self.config.theta).transpose(0, 2, 3, 1)  # [B, K, C, T]
        value = fused[:, :, h + k :].transpose(0, 2, 1, 3)  # [B, K, T, C]
        blocks = []
        for start in range(0, t, QUERY_BLOCK):  # a block of queries sees only the keys up to its end
            end = min(t, start + QUERY_BLOCK)
            rows = h // k * (end - start)
            seen = segments[:, start:end, None] == segments[:, None, :end]
            seen &= jnp.arange(start, end)[:, None] >= jnp.arange(end)
            scores = dot(q[:, :, :, start:end].reshape(b, k, rows, c), key[..., :end])
            scores = jnp.where(seen[:, None, None], scores.reshape(b, k, h // k, end - start, end), -1e30)
            weights = jax.nn.softmax(scores, axis=-1).reshape(b, k, rows, end)
            blocks.append(dot(weights, value[:, :, :end]).reshape(b, k, h // k, end - start, c))
        attended = jnp.concatenate(blocks, axis=3)  # [B, K, G, T, C]
        return attended.transpose(0, 3, 1, 2, 4).reshape(b * t, h * c)
