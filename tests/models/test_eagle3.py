"""An EAGLE-3 head is the one that its authors define, and a checkpoint that is not one is refused by name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from models import eagle3, llama, qwen3
from models.dense import dense_attend
from models.errors import CheckpointError
from sharding.mesh import one_device
from sharding.params import Placement
from tests.models.eagle3_checkpoint import CONFIG, weights, write
from tests.models.eagle3_reference import ReferenceHead

LAYERS = 8
PLACEMENT = Placement(one_device(), kv_copies=1)


def loaded(folder: Path, table: np.ndarray | None = None) -> eagle3.Eagle3:
    config = eagle3.describe(folder, LAYERS)
    shared = jnp.zeros((1, 1)) if table is None else jnp.asarray(table)
    return eagle3.load(folder, config, jnp.float32, placement=PLACEMENT, table=shared, max_length=64)


@pytest.mark.parametrize(("block", "normed_residual"), [("midlayer.", False), ("layers.0.", True)])
def test_its_forward_is_the_published_one(tmp_path: Path, block: str, normed_residual: bool) -> None:
    config = CONFIG | {"norm_before_residual": normed_residual}
    made = weights(config, LAYERS, block=block)
    head = loaded(write(tmp_path, config, made))
    reference = ReferenceHead(
        config, {name.replace("layers.0.", "midlayer."): value for name, value in made.items()}, normed_residual
    )
    random = np.random.default_rng(5)
    tokens, states = random.integers(0, 31, 9).tolist(), random.normal(size=(8, 48)).astype(np.float32)
    x, _ = head((jnp.asarray(tokens[1:]), head.fused(jnp.asarray(states))), jnp.arange(8), None, dense_attend(1, 8))
    np.testing.assert_allclose(x, reference.hidden(tokens[1:], reference.fused(states)), atol=1e-5)
    _, (scores,) = reference.chain(tokens, states, 1)
    np.testing.assert_allclose(head.logits(x[-1:])[0], scores, atol=1e-5)
    np.testing.assert_array_equal(head.targets[...], np.flatnonzero(made["t2d"]))


def test_without_token_vectors_of_its_own_it_has_the_models(tmp_path: Path) -> None:
    folder = write(tmp_path, CONFIG, weights(CONFIG, LAYERS, own_embedding=False))
    table = np.ones((31, 16), np.float32)
    np.testing.assert_array_equal(loaded(folder, table).embedding.table[...], table)
    with pytest.raises(CheckpointError, match=r"embed_tokens\.weight is missing.*\[31, 8\].*\[31, 16\]"):
        loaded(folder, table[:, :8])


def test_layers_are_counted_as_those_who_train_heads_count_them() -> None:
    name = "eagle_aux_hidden_state_layer_ids"
    assert eagle3.parse(CONFIG, 32).watched == (2, 16, 29)
    assert eagle3.parse(CONFIG | {name: [2, 18, 33]}, 36).watched == (2, 18, 33)
    assert eagle3.parse(CONFIG | {"eagle_config": {name: [1, 17, 32]}}, 36).watched == (2, 18, 33)
    assert eagle3.parse(CONFIG | {"eagle_config": {name: []}}, 36).watched == (2, 18, 33)


@pytest.mark.parametrize(
    ("changed", "layers", "named"),
    [
        ({"architectures": ["Qwen3ForCausalLM"]}, 8, "architectures"),
        ({"draft_vocab_size": None}, 8, "architectures"),
        ({"num_hidden_layers": 2}, 8, "num_hidden_layers"),
        ({"tie_word_embeddings": True}, 8, "tie_word_embeddings"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, 8, "use_aux_hidden_state"),
        ({}, 4, "eagle_aux_hidden_state_layer_ids"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 2, 9]}, 8, "eagle_aux_hidden_state_layer_ids"),
    ],
)
def test_what_is_not_offered_is_refused_with_its_field(changed: dict[str, Any], layers: int, named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        eagle3.parse(CONFIG | changed, layers)


def _without(name: str) -> Callable[[dict[str, np.ndarray]], None]:
    return lambda made: made.__delitem__(name)


def _with(name: str, value: np.ndarray) -> Callable[[dict[str, np.ndarray]], None]:
    return lambda made: made.__setitem__(name, value)


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (_without("fc.weight"), "fc.weight is missing"),
        (_without("midlayer.hidden_norm.weight"), "midlayer.hidden_norm.weight is missing"),
        (_without("d2t"), "d2t is missing"),
        (_with("midlayer.extra.weight", np.zeros(3, np.float32)), "midlayer.extra.weight is unexpected"),
        (_with("fc.weight", np.zeros((16, 16), np.float32)), r"fc.weight has shape \[16, 16\].*\[16, 48\]"),
        (_with("d2t", np.zeros(13, np.float32)), "d2t is F32"),
        (_with("d2t", np.full(13, 30, np.int64)), "13 different tokens of the model's 31"),
        (_with("d2t", -np.arange(13, dtype=np.int64)), "13 different tokens of the model's 31"),
    ],
)
def test_every_tensor_is_checked(tmp_path: Path, damage: Callable[[dict[str, np.ndarray]], None], named: str) -> None:
    made = weights(CONFIG, LAYERS)
    damage(made)
    with pytest.raises(CheckpointError, match=named):
        loaded(write(tmp_path, CONFIG, made))


@pytest.mark.parametrize(("family", "form"), [(llama, "list"), (qwen3, "stacked")])
def test_a_model_gives_what_enters_its_layers(family: Any, form: Any) -> None:
    config = {
        "vocab_size": 31,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 4,
        "max_position_embeddings": 64,
    }
    model = family.build(family.parse(config), jnp.float32, layers=form)
    tokens, positions, attend = jnp.asarray([3, 1, 4, 1, 5]), jnp.arange(5), dense_attend(1, 5)
    expected, _ = model(tokens, positions, None, attend)
    hidden, _, states = model.with_states(tokens, positions, None, attend, (0, 2, 4))
    np.testing.assert_allclose(hidden, expected, atol=1e-6)
    first, between, last = np.split(np.asarray(states), 3, axis=-1)
    np.testing.assert_array_equal(first, model.embedding(tokens))
    np.testing.assert_allclose(model.norm(jnp.asarray(last)), expected, atol=1e-5)
    shorter = family.build(family.parse(config | {"num_hidden_layers": 2}), jnp.float32, layers="list")
    longer = family.build(family.parse(config), jnp.float32, layers="list")
    shorter.embedding, shorter.layers[0], shorter.layers[1] = longer.embedding, longer.layers[0], longer.layers[1]
    _, _, of_shorter = shorter.with_states(tokens, positions, None, attend, (2,))
    if form == "list":
        np.testing.assert_allclose(between, of_shorter, atol=1e-6)
