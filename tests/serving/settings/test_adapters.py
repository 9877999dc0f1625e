"""The table `adapters` of a deployment."""

from pathlib import Path

import pytest

from serving.config import load_deployment
from serving.errors import ConfigError
from serving.settings.adapters import AdaptersConfig


def loaded(folder: Path, table: str) -> AdaptersConfig:
    file = folder / "deployment.toml"
    file.write_text(f"name = 'a'\n[model]\ncheckpoint = 'w'\n[adapters]\n{table}")
    return load_deployment(file).adapters


def test_adapters_are_named_with_their_folders_beside_the_file(tmp_path: Path) -> None:
    found = loaded(tmp_path, 'slots = 2\nmax_rank = 8\ntargets = ["q_proj"]\nnamed.polite = "polite"')
    assert found == AdaptersConfig(slots=2, max_rank=8, targets=("q_proj",), named={"polite": tmp_path / "polite"})


@pytest.mark.parametrize(
    ("table", "param"),
    [
        ('named.polite = "polite"', "slots"),
        ('folder = "adapters"', "slots"),
        ("max_rank = 8", "max_rank"),
        ('targets = ["q_proj"]', "targets"),
        ("slots = 1\nmax_rank = 2000", "max_rank"),
        ('slots = 1\nnamed."a/b" = "polite"', "named"),
        ('slots = 1\nnamed.a = "polite"', "named"),
    ],
)
def test_what_could_not_work_is_refused_with_its_key(tmp_path: Path, table: str, param: str) -> None:
    with pytest.raises(ConfigError) as refused:
        loaded(tmp_path, table)
    assert refused.value.param == param
