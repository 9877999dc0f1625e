"""Greedy decoding of many prompts at once, with a dense cache, for the evaluation."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from scripts.demo.model import ModelConfig, Params, rms_norm, rotate

_ROUND = 256  # prompts are padded to this, so that few shapes are compiled


def forward(config: ModelConfig, params: Params, cache: Array, tokens: Array, positions: Array) -> tuple[Array, Array]:
    """tokens, positions [B, T], cache [L, 2, B, S, K, C] -> (cache, hidden [B, T, D]); a slot is a position."""
    b, t = tokens.shape
    h, k, c = config.heads, config.kv_heads, config.head_dim
    rows = jnp.arange(b)[:, None]
    seen = jnp.arange(cache.shape[3]) <= positions[..., None]
    x = params["embedding"][tokens]
    for layer in range(config.layers):
        fused = (rms_norm(x, params["attention_norm"][layer], config.eps) @ params["qkv"][layer]).reshape(
            b, t, h + 2 * k, c
        )
        q = rotate(fused[:, :, :h], positions, config.theta).reshape(b, t, k, h // k, c) * c**-0.5
        cache = cache.at[layer, 0, rows, positions].set(rotate(fused[:, :, h : h + k], positions, config.theta))
        cache = cache.at[layer, 1, rows, positions].set(fused[:, :, h + k :])
        scores = jnp.einsum("btkgc,bskc->bkgts", q, cache[layer, 0])
        weights = jax.nn.softmax(jnp.where(seen[:, None, None], scores, -1e30), axis=-1)
        mixed = jnp.einsum("bkgts,bskc->btkgc", weights, cache[layer, 1]).reshape(b, t, h * c)
        x += mixed @ params["output"][layer]
        gate, up = jnp.split(rms_norm(x, params["mlp_norm"][layer], config.eps) @ params["gate_up"][layer], 2, axis=-1)
        x += (jax.nn.silu(gate) * up) @ params["down"][layer]
    return cache, rms_norm(x, params["norm"], config.eps)


@partial(jax.jit, static_argnums=0, donate_argnums=2)
def _next(
    config: ModelConfig, params: Params, cache: Array, tokens: Array, positions: Array, last: Array
) -> tuple[Array, Array]:
    cache, states = forward(config, params, cache, tokens, positions)
    picked = states[jnp.arange(tokens.shape[0]), last]
    return cache, jnp.argmax(picked @ params["embedding"].T, axis=-1).astype(jnp.int32)


def greedy(config: ModelConfig, params: Params, prompts: list[list[int]], end: int, most: int) -> list[list[int]]:
    """The continuation of each prompt up to and without `end`, of at most `most` tokens (no more than 256)."""
    longest = -(-max(map(len, prompts)) // _ROUND) * _ROUND
    room = longest + _ROUND
    size = len(prompts)
    tokens = np.zeros((size, longest), np.int32)
    lengths = np.asarray([len(prompt) for prompt in prompts], np.int32)
    for row, prompt in enumerate(prompts):
        tokens[row, : len(prompt)] = prompt
    cache = jnp.zeros((config.layers, 2, size, room, config.kv_heads, config.head_dim), jnp.float32)
    positions = np.broadcast_to(np.arange(longest, dtype=np.int32), tokens.shape)
    cache, new = _next(config, params, cache, jnp.asarray(tokens), jnp.asarray(positions), jnp.asarray(lengths - 1))
    found: list[list[int]] = [[] for _ in prompts]
    live = np.ones(size, bool)
    for step in range(most):
        picked = np.asarray(new)
        live &= picked != end
        if not live.any():
            break
        for row in np.flatnonzero(live):
            found[row].append(int(picked[row]))
        at = jnp.asarray(lengths + step)
        cache, new = _next(config, params, cache, new[:, None], at[:, None], jnp.zeros(size, jnp.int32))
    return found


@partial(jax.jit, static_argnums=0)
def _all_next(config: ModelConfig, params: Params, cache: Array, tokens: Array, positions: Array) -> Array:
    _, states = forward(config, params, cache, tokens, positions)
    return jnp.argmax(states @ params["embedding"].T, axis=-1)


def next_tokens(config: ModelConfig, params: Params, tokens: list[int]) -> list[int]:
    """The model's choice after each token of a text, given the text up to there."""
    room = -(-len(tokens) // _ROUND) * _ROUND
    padded = np.zeros((1, room), np.int32)
    padded[0, : len(tokens)] = tokens
    cache = jnp.zeros((config.layers, 2, 1, room, config.kv_heads, config.head_dim), jnp.float32)
    positions = jnp.arange(room, dtype=jnp.int32)[None]
    return np.asarray(_all_next(config, params, cache, jnp.asarray(padded), positions))[0, : len(tokens)].tolist()
