"""What a plan counts beside the chat model is what an engine then holds."""

import dataclasses
import json
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from models import bert, llama
from models import checkpoint as checkpoints
from serving.config import Deployment, EmbeddingsConfig, ModelConfig
from serving.engine.draft_model import DraftModel, load_draft
from serving.engine.eagle_head import load_head
from serving.engine.limits import ExecutorLimits
from serving.errors import CheckpointError, ConfigError
from serving.planner.beside import AbstractEncoder, AbstractGuesser, SmallModel, guesser_of, pooled_sums
from serving.planner.compiled import AbstractDeployment
from serving.settings.speculation import SpeculationConfig, SpeculationKind
from sharding.mesh import one_device
from tests.fakes.tiny_encoder import save_tiny_encoder
from tests.models import eagle3_checkpoint, tiny_checkpoint

DTYPE = jnp.dtype("float32")
LIMITS = ExecutorLimits(max_num_seqs=2, max_model_len=64, page_size=8, num_pages=1, token_buckets=(8,), guesses=2)
CONFIG = tiny_checkpoint.CONFIG
HEAD = eagle3_checkpoint.CONFIG | {
    "vocab_size": CONFIG["vocab_size"],
    "draft_vocab_size": CONFIG["vocab_size"] - 3,
    "hidden_size": CONFIG["hidden_size"],
    "eagle_aux_hidden_state_layer_ids": [0, 1, 2],
}


def deployment(folder: Path, kind: SpeculationKind, *, own_vectors: bool = False) -> Deployment:
    """`own_vectors`: the head has token vectors, and takes the model's else."""
    for name in ("model", "small"):
        (folder / name).mkdir()
    tiny_checkpoint.write(folder / "model")
    if kind == "draft":
        tiny_checkpoint.write(folder / "small", config=CONFIG | {"num_hidden_layers": 1})
    elif kind == "eagle3":
        tensors = eagle3_checkpoint.weights(HEAD, CONFIG["num_hidden_layers"], own_embedding=own_vectors)
        eagle3_checkpoint.write(folder / "small", HEAD, tensors)
    checkpoint = folder / "small" if kind != "off" else None
    return Deployment(
        name="tiny",
        model=ModelConfig(checkpoint=folder / "model"),
        speculation=SpeculationConfig(kind=kind, checkpoint=checkpoint),
    )


def planned(made: Deployment) -> SmallModel | None:
    config = llama.parse(dict(CONFIG))
    return guesser_of(made, llama, config, DTYPE, one_device(), llama.shape(config))


def loaded(made: Deployment) -> DraftModel:
    """As the engine has it."""
    config, mesh = llama.parse(dict(CONFIG)), one_device()
    target, shape = llama.build(config, DTYPE, layers="stacked"), llama.shape(config)
    found = load_draft(made, shape, 64, DTYPE, "stacked", mesh, _quiet) or load_head(
        made, target, shape, 64, DTYPE, mesh, _quiet
    )
    assert found is not None
    return found


@pytest.mark.parametrize(("kind", "own_vectors"), [("draft", True), ("eagle3", True), ("eagle3", False)])
def test_what_guesses_is_counted_as_it_is_loaded(tmp_path: Path, kind: SpeculationKind, own_vectors: bool) -> None:
    made = deployment(tmp_path, kind, own_vectors=own_vectors)
    small, real = planned(made), loaded(made)
    assert small is not None
    limits = dataclasses.replace(LIMITS, watched=real.watched)
    abstract = AbstractDeployment(llama, llama.parse(dict(CONFIG)), DTYPE, limits, one_device(), "reference")
    found = AbstractGuesser(small, limits, abstract.body, DTYPE, one_device()).holdings()
    shared = 0 if own_vectors else 4 * CONFIG["vocab_size"] * CONFIG["hidden_size"]
    assert found.weights == _nbytes(real.model) - shared
    pages = real.page_bytes(limits, abstract.body, DTYPE, one_device())
    assert (found.pages + found.states) * limits.page_size == pages
    assert found.states == (3 * 4 * CONFIG["hidden_size"] if kind == "eagle3" else 0)
    plain = AbstractDeployment(llama, llama.parse(dict(CONFIG)), DTYPE, LIMITS, one_device(), "reference")
    assert abstract.holdings() == plain.holdings(), "the chat model's own pages stay what they are"


def test_the_program_of_a_head_is_made_of_shapes_alone(tmp_path: Path) -> None:
    small = planned(deployment(tmp_path, "eagle3"))
    assert small is not None
    limits = dataclasses.replace(LIMITS, watched=small.form.watched)
    body = AbstractDeployment(llama, llama.parse(dict(CONFIG)), DTYPE, limits, one_device(), "reference").body
    pool, guesses = AbstractGuesser(small, limits, body, DTYPE, one_device()).lowered(num_pages=9).out_info
    assert {leaf.shape[0] for leaf in jax.tree.leaves(pool)} == {9}
    assert guesses.shape == (limits.guesses, limits.max_num_seqs)


def test_a_head_whose_weights_are_not_at_hand_is_counted_with_its_token_vectors(tmp_path: Path) -> None:
    made = deployment(tmp_path, "eagle3")
    (tmp_path / "small" / "model.safetensors").unlink()
    small = planned(made)
    assert small is not None
    assert small.shared == 0


def test_an_encoder_is_counted_as_it_is_loaded(tmp_path: Path) -> None:
    config = EmbeddingsConfig(checkpoint=save_tiny_encoder(tmp_path / "encoder"), name="e", max_tokens=40)
    real, _, _ = checkpoints.load(config.checkpoint, jnp.float32, families=cast(Any, (bert,)))
    abstract = AbstractEncoder(config, jax.devices()[0])
    assert abstract.holdings().weights == _nbytes(real)
    assert abstract.temporaries(num_pages=9) > 0


def test_pooling_keeps_a_sum_for_each_sequence_of_all_shards() -> None:
    assert pooled_sums(dataclasses.replace(LIMITS, shards=3), 16).sums == 3 * 2 * 16 * 4


def test_what_could_not_be_served_is_not_planned(tmp_path: Path) -> None:
    made = deployment(tmp_path, "draft")
    small = tmp_path / "small" / "config.json"
    small.write_text(json.dumps(CONFIG | {"vocab_size": 40}))
    with pytest.raises(ConfigError, match="40 tokens"):
        planned(made)
    small.unlink()
    with pytest.raises(CheckpointError, match=r"speculation\.checkpoint"):
        planned(made)
    assert planned(dataclasses.replace(made, speculation=SpeculationConfig(kind="ngram"))) is None


def _nbytes(model: Any) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(nnx.state(model)))


def _quiet(what: str, done: int, total: int) -> None:
    pass
