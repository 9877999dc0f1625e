"""The window of a deployment, as both of its processes have it."""

import json
from pathlib import Path
from typing import Any

import pytest

from serving.app import window_of
from serving.config import Deployment, EngineConfig, ModelConfig
from serving.errors import CheckpointError, ConfigError

QWEN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


def deployment(folder: Path, fields: Any, wanted: int | None) -> Deployment:
    (folder / "config.json").write_text(json.dumps(fields))
    return Deployment(name="m", model=ModelConfig(checkpoint=folder), engine=EngineConfig(max_model_len=wanted))


@pytest.mark.parametrize("trained", [32768, 40960])
def test_the_default_is_what_the_checkpoint_was_made_for_and_yarn_allows_more(tmp_path: Path, trained: int) -> None:
    fields = {"max_position_embeddings": trained, "rope_scaling": QWEN}
    assert window_of(deployment(tmp_path, fields, None)) == trained
    assert window_of(deployment(tmp_path, fields, 131072)) == 131072
    with pytest.raises(ConfigError, match="allows 131072 tokens"):
        window_of(deployment(tmp_path, fields, 131073))


def test_a_window_beyond_what_is_allowed_is_refused_with_the_cure(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="add the rope_scaling to config") as refusal:
        window_of(deployment(tmp_path, {"max_position_embeddings": 32768}, 131072))
    assert refusal.value.param == "max_model_len"
    assert "engine.max_model_len is 131072" in refusal.value.message
    assert "allows 32768 tokens" in refusal.value.message


@pytest.mark.parametrize("fields", [{}, [], {"max_position_embeddings": "64"}, {"max_position_embeddings": 0}])
def test_a_checkpoint_that_does_not_say_it_is_named(tmp_path: Path, fields: Any) -> None:
    with pytest.raises(CheckpointError, match="max_position_embeddings"):
        window_of(deployment(tmp_path, fields, 8))
