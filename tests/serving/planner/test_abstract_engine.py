"""A plan is of a window that the start would take."""

import json
from pathlib import Path

import pytest

from serving.config import Deployment, EngineConfig, ModelConfig
from serving.errors import ConfigError
from serving.planner.abstract_engine import abstract_engine
from tests.models.tiny_checkpoint import CONFIG


@pytest.mark.parametrize(("more", "most"), [({}, 64), ({"rope_scaling": {"type": "linear", "factor": 2.0}}, 128)])
def test_a_window_that_the_start_would_refuse_is_not_planned(tmp_path: Path, more: dict, most: int) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | more))
    deployment = Deployment(
        name="tiny", model=ModelConfig(checkpoint=tmp_path), engine=EngineConfig(max_model_len=most + 1)
    )
    with pytest.raises(ConfigError, match=f"tiny allows {most} tokens") as refusal:
        abstract_engine(deployment, "v5e-1")
    assert refusal.value.param == "max_model_len"
