"""Attention split by head over eight devices gives what one device gives, and the same pages."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.dispatch import attention_body
from pallas_kernels.ragged import AttentionOptions, PoolSpec
from serving.engine.placement import attention_on_mesh, pool_on_mesh
from sharding.mesh import everywhere, make_mesh
from tests.pallas_kernels.ragged_sequences import PagedSequences

TOKENS, ROWS, PAGES, PAGE, HEADS, C = 16, 3, 20, 8, 16, 16


@dataclass(frozen=True)
class Setting:
    options: AttentionOptions
    window: int | None = None
    sinks: bool = False
    dtype: str = "float32"


SETTINGS = {
    "a window, a soft cap and sinks": Setting(AttentionOptions(scale=0.25, soft_cap=3.0), window=9, sinks=True),
    "latent pages": Setting(AttentionOptions(scale=0.25, value_dim=8)),
    "int8 pages": Setting(AttentionOptions(scale=0.25), dtype="int8"),
}


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS.keys())
def test_split_attention_equals_whole_attention(setting: Setting) -> None:
    random = np.random.default_rng(3)
    body, latent = attention_body("reference"), setting.options.value_dim is not None
    spec = PoolSpec(PAGES, 2, PAGE, 1 if latent else 8, C, setting.dtype, latent)
    sequences = PagedSequences(random, PAGES, PAGE)
    steps = [(sequences.begin(30), count) for count in (1, 9, 4)]
    batch = sequences.batch(steps, num_decode=1, tokens=TOKENS, rows=ROWS, width=5)
    q, k, v = (jnp.asarray(random.standard_normal((TOKENS, n, C), np.float32)) for n in (HEADS, spec.kv_heads, 8))
    sinks = jnp.asarray(random.standard_normal(HEADS, np.float32)) if setting.sinks else None

    def run(devices: int):
        mesh = make_mesh({"tensor": devices})
        abstract = pool_on_mesh(body, spec, mesh)
        pool = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype, device=leaf.sharding), abstract)
        attend = attention_on_mesh(body.attend, mesh, abstract)
        given = jax.device_put((q, k, None if latent else v, batch, sinks), everywhere(mesh))

        def call(pool, q, k, v, batch, sinks):
            return attend(q, k, v, pool, 1, batch, setting.options, sinks, setting.window)

        out, pool = jax.jit(call)(pool, *given)
        return jax.tree.map(np.asarray, (out, pool)), pool

    (whole, pages), _ = run(1)
    (split, parts), pool = run(8)
    assert np.abs(whole).max() > 0.1
    np.testing.assert_allclose(split, whole, atol=1e-6)
    jax.tree.map(np.testing.assert_array_equal, parts, pages)
    heads = [leaf.sharding.shard_shape(leaf.shape)[3] for leaf in jax.tree.leaves(pool)]
    assert set(heads) == {1 if latent else 2}
