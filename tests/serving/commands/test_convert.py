"""weft convert: a checkpoint in, one in weft's own layout out."""

import json
from pathlib import Path

import pytest

from serving.cli import main
from serving.supervisor import EXIT_SETUP
from tests.models import tiny_checkpoint


def test_a_checkpoint_is_converted_to_the_type_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hub, out = tmp_path / "hub", tmp_path / "out"
    hub.mkdir()
    tiny_checkpoint.write(hub)
    assert main(["convert", str(hub), str(out), "--dtype", "bfloat16"]) == 0
    assert str(out) in capsys.readouterr().out.replace("\n", "")
    assert json.loads((out / "weft.json").read_text())["dtype"] == ["bfloat16"]
    assert main(["convert", str(hub), str(out)]) == EXIT_SETUP
    assert "it exists already" in capsys.readouterr().err


def test_a_place_that_cannot_be_written_is_said_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hub, notes = tmp_path / "hub", tmp_path / "notes"
    hub.mkdir()
    tiny_checkpoint.write(hub)
    notes.write_text("no directory")
    assert main(["convert", str(hub), str(notes / "out")]) == EXIT_SETUP
    assert f"weft: {notes}" in capsys.readouterr().err
