"""The table `speculation` of a deployment."""

from pathlib import Path
from typing import Literal

import pytest

from serving.config import load_deployment
from serving.errors import ConfigError
from serving.settings.speculation import SpeculationConfig


def loaded(folder: Path, table: str) -> SpeculationConfig:
    file = folder / "deployment.toml"
    file.write_text(f"name = 'a'\n[model]\ncheckpoint = 'w'\n[speculation]\n{table}")
    return load_deployment(file).speculation


def test_nothing_is_guessed_unless_it_is_asked_for(tmp_path: Path) -> None:
    assert loaded(tmp_path, "").kind == "off"


@pytest.mark.parametrize("kind", ["draft", "eagle3"])
def test_its_checkpoint_is_found_beside_the_file(tmp_path: Path, kind: Literal["draft", "eagle3"]) -> None:
    found = loaded(tmp_path, f'kind = "{kind}"\ncheckpoint = "small"\ndepth = 6')
    assert found == SpeculationConfig(kind=kind, checkpoint=tmp_path / "small", depth=6)


@pytest.mark.parametrize(
    ("table", "param"),
    [
        ('kind = "draft"', "checkpoint"),
        ('kind = "ngram"\ncheckpoint = "small"', "checkpoint"),
        ('checkpoint = "small"', "checkpoint"),
        ('kind = "ngram"\nngram_shortest = 5', "ngram_shortest"),
        ('kind = "eagle3"', "checkpoint"),
        ('kind = "draft"\ncheckpoint = "small"\nngram_longest = 5', "ngram_longest"),
        ('kind = "eagle3"\ncheckpoint = "small"\nngram_shortest = 1', "ngram_shortest"),
        ('kind = "medusa"', "speculation.kind"),
        ('kind = "ngram"\ndepth = 0', "depth"),
        ('kind = "ngram"\ndepth = 16', "depth"),
        ('kind = "ngram"\nngram_longest = 17', "ngram_longest"),
    ],
)
def test_what_could_not_work_is_refused_with_its_key(tmp_path: Path, table: str, param: str) -> None:
    with pytest.raises(ConfigError) as refused:
        loaded(tmp_path, table)
    assert refused.value.param == param
