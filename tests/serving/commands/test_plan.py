"""`weft plan` before anything is compiled."""

import os
from pathlib import Path

import pytest

from serving.cli import main


def test_a_model_that_nothing_describes_is_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "d.toml"
    file.write_text(f'name = "d"\nmodel = {{checkpoint = "{tmp_path}/none"}}\n')
    assert main(["plan", str(file), "--topology", "v5e:1"]) == os.EX_CONFIG
    said = capsys.readouterr().err
    assert f"weft: {tmp_path}/none/config.json: there is no such file" in said
    assert said.count("config.json: ") == 1
