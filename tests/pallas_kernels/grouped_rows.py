"""Grouped matmuls to compute twice: by a body, and by a loop in float64."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from pallas_kernels.grouped import ExpertWeights, GroupedMatmul, expert_matrices

# Empty groups at both ends and between; one row; more rows than a tile; none at all; rows that no group has.
GROUPS: dict[str, tuple[int, list[int]]] = {
    "even": (32, [8, 8, 8, 8]),
    "ragged, with empty groups": (64, [0, 3, 0, 0, 33, 1, 27, 0]),
    "one row": (1, [0, 0, 1, 0]),
    "all rows at one expert": (40, [0, 40, 0, 0]),
    "no rows at all": (8, [0, 0, 0]),
    "rows beyond the groups": (48, [5, 0, 20, 7]),
    "more experts than rows": (6, [0, 1, 0, 2, 0, 0, 0, 1, 1, 0, 0, 1, 0, 0, 0, 0]),
    "one expert": (24, [17]),
}


def draw(shape: tuple[int, ...], dtype: Any, seed: int) -> jnp.ndarray:
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape, np.float32), dtype)


def in_float64(x: jnp.ndarray, weights: ExpertWeights, group_sizes: list[int], first_expert: int = 0) -> np.ndarray:
    """[sum(group_sizes), N * F], expert by expert."""
    matrices = expert_matrices(weights)
    values = np.asarray(matrices.values.astype(jnp.float32), np.float64)
    if matrices.scales is not None and matrices.rows_per_scale is not None:
        values *= np.repeat(np.asarray(matrices.scales, np.float64), matrices.rows_per_scale, axis=1)
    rows = np.asarray(x.astype(jnp.float32), np.float64)
    parts, begin = [], 0
    for group, size in enumerate(group_sizes):
        first = (first_expert + group) * matrices.products
        block = rows[begin : begin + size]
        parts.append(np.concatenate([block @ values[first + n] for n in range(matrices.products)], axis=1))
        begin += size
    return np.concatenate(parts)


def assert_agrees(
    body: GroupedMatmul, x: Any, weights: ExpertWeights, group_sizes: list[int], tolerance: float, **options: Any
) -> None:
    """The rows that groups have, to `tolerance` of the largest number expected. Rows beyond them may be anything."""
    out = body(x, weights, jnp.asarray(group_sizes, jnp.int32), **options)
    options.pop("preferred_element_type", None)
    expected = in_float64(x, weights, group_sizes, **options)
    assert out.shape == (x.shape[0], expected.shape[1])
    found = np.asarray(out.astype(jnp.float32), np.float64)[: len(expected)]
    error = np.abs(found - expected).max(initial=0.0) / max(np.abs(expected).max(initial=0.0), 1e-30)
    assert error <= tolerance, f"off by {error:.2e} of the largest"
