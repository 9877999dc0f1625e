from pathlib import Path

import pytest

from serving.config import Deployment, load_deployment
from serving.errors import ConfigError

ALL = """
name = "m"
[model]
checkpoint = "."
[models.small.model]
checkpoint = "."
[[routing.rules]]
model = "any"
target = "m"
[embeddings]
checkpoint = "."
name = "e"
[moderation.judges.words]
kind = "rules"
[adapters]
slots = 1
named = {{ poet = "." }}
{folder}
[tiers.gold]
models = ["{model}"]
"""


def load(folder: Path, model: str, loadable: str = "") -> Deployment:
    path = folder / "deployment.toml"
    path.write_text(ALL.format(model=model, folder=loadable))
    return load_deployment(path)


@pytest.mark.parametrize("model", ["m", "small", "e", "weft-moderation", "m:poet"])
def test_a_tier_may_name_whatever_requests_can_mean(tmp_path: Path, model: str) -> None:
    assert load(tmp_path, model).tiers["gold"].models == (model,)


@pytest.mark.parametrize("model", ["n", "", "poet", "m:painter", "small:poet", "any"])
def test_a_model_that_nobody_serves_is_refused_with_those_that_are(tmp_path: Path, model: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, model)
    assert refused.value.param == "tiers.gold.models"
    assert f"must be some of m, small, e, weft-moderation, m:poet, not {model!r}" in refused.value.message


def test_an_adapter_that_may_be_loaded_later_may_be_named_before(tmp_path: Path) -> None:
    assert load(tmp_path, "m:painter", 'folder = "."').tiers["gold"].models == ("m:painter",)
    with pytest.raises(ConfigError, match="'m:a/b'"):
        load(tmp_path, "m:a/b", 'folder = "."')
