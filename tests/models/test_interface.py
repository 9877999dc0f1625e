"""The two forms of a model's layers compute the same, and the list reads its weights where they lie."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models import llama
from models.decoder import Decoder
from models.interface import LayerForm
from tests.models.forward import dense_logits, dense_program
from tests.models.tiny_checkpoint import CONFIG


def small_llama(form: LayerForm, dtype: jnp.dtype) -> Decoder:
    config = llama.parse({**CONFIG, "hidden_size": 128, "intermediate_size": 256, "head_dim": 32})
    return llama.build(config, dtype, layers=form)


def test_scanned_and_unrolled_layers_give_the_same_logits() -> None:
    stacked, listed = small_llama("stacked", jnp.float32), small_llama("list", jnp.float32)
    for layer, block in enumerate(listed.layers):
        nnx.update(block, jax.tree.map(lambda leaf, layer=layer: np.asarray(leaf)[layer], nnx.state(stacked.layers)))
    for name in ("embedding", "norm", "head"):
        nnx.update(getattr(listed, name), nnx.state(getattr(stacked, name)))
    tokens = np.arange(8)
    np.testing.assert_allclose(dense_logits(stacked, tokens), dense_logits(listed, tokens), atol=1e-5)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_compiled_forward_over_a_list_copies_no_weight(dtype: jnp.dtype) -> None:
    length = 2  # so that activations are smaller than any matrix
    program, weights = dense_program(small_llama("list", dtype), length)
    compiled = program.lower(weights, jnp.zeros(length, jnp.int32)).compile()
    smallest_matrix = 4 * 32 * 128 * jnp.dtype(dtype).itemsize  # the attention's output projection
    assert compiled.memory_analysis().temp_size_in_bytes < smallest_matrix
