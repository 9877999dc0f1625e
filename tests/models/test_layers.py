from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import Array

from models import llama
from models.layers import use_matmul
from pallas_kernels.dispatch import DenseMatmul
from tests.models.forward import dense_logits
from tests.models.tiny_checkpoint import CONFIG


def test_weights_are_drawn_from_the_seed_and_scaled_by_their_fan_in() -> None:
    config = llama.parse({**CONFIG, "hidden_size": 64, "vocab_size": 997})
    first, again, other = (nnx.state(llama.build(config, jnp.float32, seed)) for seed in (1, 1, 2))
    assert all((a == b).all() for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(again), strict=True))
    table = np.asarray(first["embedding"]["table"].get_value())
    assert (table != np.asarray(other["embedding"]["table"].get_value())).any()
    assert abs(table.std() - 64**-0.5) < 0.01


def test_without_a_seed_nothing_is_allocated() -> None:
    huge = llama.parse({**CONFIG, "hidden_size": 1 << 20, "vocab_size": 1 << 20, "intermediate_size": 1 << 22})
    leaves = jax.tree.leaves(nnx.state(llama.build(huge, jnp.bfloat16, seed=None)))
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_projections_and_logits_multiply_with_what_was_decided_at_load(bias: bool, tied: bool) -> None:
    config = llama.parse({**CONFIG, "tie_word_embeddings": tied, "attention_bias": bias, "mlp_bias": bias})
    model = llama.build(config, jnp.float32, 3, layers="list")
    ids = np.array([5, 3, 8, 13, 2])
    right = dense_logits(model, ids)
    called = Counter[str]()

    def plain(x: Array, weight: Array) -> Array:
        called["plain"] += 1
        return jnp.einsum("ti,io->to", x, weight)

    def transposed(x: Array, weight: Array) -> Array:
        called["transposed"] += 1
        return jnp.einsum("ti,oi->to", x, weight)

    use_matmul(model, DenseMatmul(plain, transposed))
    np.testing.assert_allclose(dense_logits(model, ids), right, rtol=1e-5, atol=1e-5)
    assert called == Counter(plain=4 * config.sizes.layers + (not tied), transposed=int(tied))
