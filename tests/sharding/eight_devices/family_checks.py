"""Every family computes on eight devices what it computes on one: hidden states, logits and pages."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from jax.sharding import Mesh

from models.interface import Attend
from models.registry import FAMILIES
from models.split_experts import split_experts
from pallas_kernels.dispatch import PagedAttention, attention_body
from pallas_kernels.ragged import PoolSpec, RaggedBatch
from serving.engine.placement import attention_on_mesh, pool_on_mesh
from sharding.mesh import everywhere, make_mesh
from sharding.params import place_model, placement_of
from tests.pallas_kernels.ragged_sequences import PagedSequences
from tests.sharding.eight_devices.tiny_engine import CONFIG, PAGE, PAGES, VOCAB, family

TOKENS = 16


@pytest.mark.parametrize("name", [name for one in FAMILIES for name in one.architectures])
def test_eight_devices_compute_what_one_does(name: str) -> None:
    sizes = {"tensor": 4, "expert": 2} if family(name).shape(parsed(name)).experts else {"tensor": 8}
    hidden, logits = computed(name, make_mesh(sizes))
    same_hidden, same_logits = computed(name, make_mesh({}))
    assert np.isfinite(same_logits).all()
    assert np.ptp(same_logits) > 0.1
    np.testing.assert_allclose(hidden, same_hidden, atol=1e-4)
    np.testing.assert_allclose(logits, same_logits, atol=1e-4)


def parsed(name: str) -> Any:
    return family(name).parse(CONFIG | {"architectures": [name], "num_hidden_layers": 2})


def computed(name: str, mesh: Mesh) -> tuple[np.ndarray, np.ndarray]:
    """(hidden [T, D], logits [T, V]) of one prompt, through layers that are scanned."""
    found, config = family(name), parsed(name)
    shape, body = found.shape(config), attention_body("reference")
    placement = placement_of(mesh, shape.num_heads, shape.num_kv_heads)
    model = place_model(found.build(config, jnp.dtype("float32")), placement)
    split_experts(model, mesh)
    latent = shape.value_dim is not None
    kv_heads = 1 if latent else shape.num_kv_heads * placement.kv_copies
    pool = pool_on_mesh(body, PoolSpec(PAGES, 2, PAGE, kv_heads, shape.head_dim, "float32", latent), mesh)
    sequences = PagedSequences(np.random.default_rng(0), PAGES, PAGE)
    batch = sequences.batch([(sequences.begin(TOKENS), TOKENS)], num_decode=0, tokens=TOKENS, rows=1, width=4)
    tokens = np.random.default_rng(1).integers(0, VOCAB, TOKENS).astype(np.int32)

    @jax.jit
    def forward(token_ids: Array, batch: RaggedBatch) -> tuple[Array, Array]:
        pages = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), pool)
        attend = paged(attention_on_mesh(body.attend, mesh, pool), batch)
        hidden, _ = model(token_ids, batch.positions, pages, attend)
        return hidden, model.logits(hidden)[:, :VOCAB]

    return jax.tree.map(np.asarray, forward(*jax.device_put((tokens, batch), everywhere(mesh))))


def paged(attention: PagedAttention, batch: RaggedBatch) -> Attend:
    def attend(cache, layer, q, k, v, options, *, sinks=None, window=None):
        out, cache = attention(q, k, v, cache, layer, batch, options, sinks, window)
        return cache, out

    return attend
