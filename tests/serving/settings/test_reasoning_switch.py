"""The table `model.reasoning_switch` of a deployment file."""

from pathlib import Path

import pytest

from serving.config import load_deployment
from serving.errors import ConfigError
from serving.settings.reasoning_switch import ReasoningSwitchConfig


def switch_of(folder: Path, text: str) -> ReasoningSwitchConfig | None:
    path = folder / "d.toml"
    path.write_text(f'name = "d"\nmodel.checkpoint = "c"\nmodel.reasoning_switch = {{{text}}}\n', encoding="utf-8")
    return load_deployment(path).model.reasoning_switch


def test_values_are_booleans_integers_and_strings(tmp_path: Path) -> None:
    values = {"none": False, "low": 512, "high": "long"}
    read = switch_of(tmp_path, 'variable = "mode", values = {none = false, low = 512, high = "long"}')
    assert read == ReasoningSwitchConfig(variable="mode", values=values)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("values = {none = false}", "missing key model.reasoning_switch.variable"),
        ('variable = "mode", values = {none = 0.5}', "values.none must be bool or int or str, not float 0.5"),
        ('variable = "mode", values = {off = false}', "values must be by none, minimal, low.*, not by 'off'"),
    ],
)
def test_a_table_that_cannot_hold_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        switch_of(tmp_path, text)
