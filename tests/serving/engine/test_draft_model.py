"""A draft model that does not go with its model is refused before anything is served."""

import dataclasses
from pathlib import Path

import jax.numpy as jnp
import pytest

from models.checkpoint import abstract
from serving.config import load_deployment
from serving.engine.device import most_guesses
from serving.engine.draft_model import DraftModel, load_draft
from serving.errors import CheckpointError, ConfigError
from serving.settings.speculation import SpeculationConfig
from sharding.mesh import one_device

CONFIGS = Path(__file__).resolve().parents[3] / "configs"
DEMO = load_deployment(CONFIGS / "deployments" / "demo.toml")
DTYPE = jnp.dtype("float32")
SIZES = {"data": 1, "pipeline": 1, "expert": 1, "tensor": 1}


def loaded(checkpoint: Path | None, vocab_size: int) -> DraftModel | None:
    speculation = SpeculationConfig(kind="draft", checkpoint=checkpoint)
    deployment = dataclasses.replace(DEMO, speculation=speculation)
    _, target, _ = abstract(DEMO.model.checkpoint, DTYPE, layers="list")
    target = dataclasses.replace(target, vocab_size=vocab_size)
    return load_draft(deployment, target, 1024, DTYPE, "list", one_device(), lambda what, done, total: None)


def test_the_demo_has_a_draft_with_its_tokens() -> None:
    found = loaded(CONFIGS / "checkpoints" / "demo-draft", 1024)
    assert found is not None
    assert found.shape.num_layers == 3


def test_without_a_checkpoint_there_is_none() -> None:
    assert loaded(None, 1024) is None


def test_another_vocabulary_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"1024 tokens.*2048"):
        loaded(CONFIGS / "checkpoints" / "demo-draft", 2048)


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"speculation\.checkpoint"):
        loaded(tmp_path, 1024)


def test_a_deployment_guesses_as_deep_as_it_says() -> None:
    assert most_guesses(SpeculationConfig(), SIZES) == 0
    assert most_guesses(SpeculationConfig(kind="ngram", depth=3), SIZES | {"tensor": 4}) == 3
    assert most_guesses(SpeculationConfig(kind="eagle3", depth=2), SIZES | {"expert": 2, "tensor": 2}) == 2


@pytest.mark.parametrize("axis", ["data", "pipeline"])
def test_an_axis_that_needs_the_host_between_tokens_is_refused(axis: str) -> None:
    with pytest.raises(ConfigError, match=rf"mesh\.{axis}"):
        most_guesses(SpeculationConfig(kind="ngram"), SIZES | {axis: 2})
