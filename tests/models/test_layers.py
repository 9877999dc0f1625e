import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from models import llama
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
