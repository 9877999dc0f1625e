"""The sampler once more, in float64 numpy, one sequence at a time and with a sort: what `sampling` is held against."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from serving.engine.request import SamplingParams
from serving.engine.sampling import SampleParams


def edited(logits: np.ndarray, s: SamplingParams, prompt: Sequence[int], output: Sequence[int]) -> np.ndarray:
    """Logits [V] after penalties, bias and bans."""
    x = np.asarray(logits, np.float64).copy()
    for token in set(prompt) | set(output):
        x[token] = x[token] / s.repetition_penalty if x[token] > 0 else x[token] * s.repetition_penalty
    for token in set(output):
        x[token] -= s.frequency_penalty * list(output).count(token) + s.presence_penalty
    for token, value in s.logit_bias:
        x[token] += value
    if s.allowed_token_ids:
        x[[v for v in range(x.size) if v not in s.allowed_token_ids]] = -np.inf
    if len(output) < s.min_tokens:
        x[list(s.eos_token_ids + s.stop_token_ids)] = -np.inf
    for *prefix, last in s.bad_words:
        if tuple(output[len(output) - len(prefix) :]) == tuple(prefix):
            x[last] = -np.inf
    return x


def distribution(
    logits: np.ndarray, s: SamplingParams, prompt: Sequence[int] = (), output: Sequence[int] = ()
) -> np.ndarray:
    """Probabilities [V] with which the next token is drawn, for a temperature above 0."""
    x = edited(logits, s, prompt, output)
    weights = np.exp((x - x.max()) / s.temperature)
    descending = np.sort(x)[::-1]
    keep = weights >= s.min_p
    if s.top_k:
        keep &= x >= descending[s.top_k - 1]
    weights[~keep] = 0
    weights /= weights.sum()
    if s.top_p < 1:
        mass = np.cumsum(np.sort(weights)[::-1])
        weights[x < descending[np.searchsorted(mass, s.top_p)]] = 0
    return weights / weights.sum()


def packed(
    samplings: Sequence[SamplingParams],
    *,
    rows: Sequence[int] | None = None,
    positions: Sequence[int] | None = None,
    num_output: Sequence[int] | None = None,
) -> SampleParams:
    """The parameters of one step, one sequence for each of `samplings`."""
    size = len(samplings)

    def column(name: str, dtype: type) -> jnp.ndarray:
        return jnp.array([getattr(s, name) for s in samplings], dtype)

    return SampleParams(
        row=jnp.array(range(size) if rows is None else rows, jnp.int32),
        position=jnp.array([0] * size if positions is None else positions, jnp.int32),
        needs_sample=jnp.ones(size, bool),
        stateful=jnp.ones(size, bool),
        ban_stops=jnp.array([n < s.min_tokens for n, s in zip(num_output or [0] * size, samplings, strict=True)]),
        temperature=column("temperature", jnp.float32),
        top_k=column("top_k", jnp.int32),
        top_p=column("top_p", jnp.float32),
        min_p=column("min_p", jnp.float32),
        presence=column("presence_penalty", jnp.float32),
        frequency=column("frequency_penalty", jnp.float32),
        repetition=column("repetition_penalty", jnp.float32),
        seed_hi=jnp.array([s.seed >> 32 for s in samplings], jnp.uint32),
        seed_lo=jnp.array([s.seed & 0xFFFFFFFF for s in samplings], jnp.uint32),
    )
