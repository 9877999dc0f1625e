"""A decoder cut into stages: which layers each has, and that nothing is lost between them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from models.dense import dense_attend
from models.interface import LayerForm
from models.registry import FAMILIES
from models.stages import in_stages, layers_of_stages
from sharding.mesh import MeshError
from tests.sharding.eight_devices.tiny_engine import CONFIG

TOKENS = 9


def test_layers_are_split_evenly_and_the_first_stages_take_what_is_over() -> None:
    assert layers_of_stages(8, 4) == [range(0, 2), range(2, 4), range(4, 6), range(6, 8)]
    assert layers_of_stages(7, 3) == [range(0, 3), range(3, 5), range(5, 7)]


def test_more_stages_than_layers_are_refused_with_what_would_work() -> None:
    with pytest.raises(MeshError, match=r"3 layers cannot be split into 4 stages \(pipeline\): it can be 1 .. 3"):
        layers_of_stages(3, 4)


@pytest.mark.parametrize(("name", "form"), [("Gemma2ForCausalLM", "list"), ("DeepseekV3ForCausalLM", "stacked")])
def test_stages_one_after_another_compute_what_the_whole_model_does(name: str, form: LayerForm) -> None:
    """Gemma 2 ties its logits to the token vectors, DeepSeek's first layer is of another kind than the rest."""
    family = next(one for one in FAMILIES if name in one.architectures)
    config = family.parse(CONFIG | {"architectures": [name], "num_hidden_layers": 3})
    model = family.build(config, jnp.float32, layers=form)
    first, last = in_stages(model, 2).parts
    positions, attend = jnp.arange(TOKENS), dense_attend(1, TOKENS)

    @jax.jit
    def both(tokens: Array) -> tuple[Array, Array]:
        hidden, _ = model(tokens, positions, None, attend)
        passed, _ = first(tokens, positions, None, attend)
        same, _ = last(passed, positions, None, attend)
        return model.logits(hidden), last.logits(same)

    tokens = jnp.asarray(np.random.default_rng(0).integers(0, 100, TOKENS), jnp.int32)
    whole, staged = both(tokens)
    assert np.ptp(np.asarray(whole)) > 0.1
    np.testing.assert_allclose(staged, whole, atol=1e-5)


def test_no_weight_is_on_two_stages_but_tied_token_vectors() -> None:
    family = next(one for one in FAMILIES if "LlamaForCausalLM" in one.architectures)
    for tied in (False, True):
        config = family.parse(CONFIG | {"architectures": ["LlamaForCausalLM"], "tie_word_embeddings": tied})
        model = family.build(config, jnp.float32, seed=None)
        first, last = in_stages(model, 2).parts
        assert (first.norm, first.head) == (None, None)
        assert (last.embedding is not None) == tied
