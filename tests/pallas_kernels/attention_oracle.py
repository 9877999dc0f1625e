"""Attention by its definition, in float64 numpy, one query at a time."""

import numpy as np

from pallas_kernels.ragged import AttentionOptions


def attend_one(
    query: np.ndarray,  # [H, C]
    keys: np.ndarray,  # [N, K, C], of all positions up to and with the query's
    values: np.ndarray | None,  # [N, K, C]; None where latent
    options: AttentionOptions,
    sinks: np.ndarray | None = None,  # [H]
    window: int | None = None,
) -> np.ndarray:  # [H, C or value_dim]
    values = keys[..., : options.value_dim] if values is None else values
    query, keys, values = (x.astype(np.float64) for x in (query, keys, values))
    if window is not None:
        position = len(keys) - 1
        begin = position // window * window if options.chunked else max(0, position - window + 1)
        keys, values = keys[begin:], values[begin:]
    group = query.shape[0] // keys.shape[1]
    keys, values = np.repeat(keys, group, axis=1), np.repeat(values, group, axis=1)
    scores = np.einsum("hc,nhc->hn", query, keys) * options.scale
    if options.soft_cap is not None:
        scores = options.soft_cap * np.tanh(scores / options.soft_cap)
    if sinks is not None:
        scores = np.concatenate([scores, sinks.astype(np.float64)[:, None]], axis=1)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    return np.einsum("hn,nhc->hc", weights[:, : len(keys)], values)
