"""`weft bench offline` from flags to files, over a scripted engine in the place of the deployment's."""

import json
import os
from pathlib import Path

import pytest

import serving.app
from serving.cli import main
from serving.config import Deployment
from tests.fakes.engine import Script, ScriptedEngine

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def deployment(tmp_path: Path) -> Path:
    path = tmp_path / "draft.toml"
    path.write_text(
        f'name = "draft"\n[model]\ncheckpoint = "{ROOT / "configs/checkpoints/demo-draft"}"\n'
        "[engine]\nmax_model_len = 128\n[mesh]\ndata = 2\n"
    )
    return path


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[Deployment]:
    """Those that an engine was built of."""
    made: list[Deployment] = []

    def build(deployment: Deployment) -> ScriptedEngine:
        made.append(deployment)
        return ScriptedEngine([Script(token_ids=range(100))])

    monkeypatch.setattr(serving.app, "build_engine", build)
    return made


def test_numbers_reach_the_file(deployment: Path, built: list[Deployment], tmp_path: Path) -> None:
    written = tmp_path / "run.json"
    flags = f"--num-prompts 3 --input-len 124 --output-len 4 --json {written}"
    assert main(["bench", "offline", str(deployment), *flags.split()]) == 0
    assert json.loads(written.read_text())["result"]["output_tokens"] == 12
    assert built[0].engine.max_waiting == 1024


def test_an_output_that_the_window_would_cut_short_is_refused_before_the_model_is_loaded(
    deployment: Path, built: list[Deployment], capsys: pytest.CaptureFixture[str]
) -> None:
    flags = "--num-prompts 3 --input-len 120 --shared-prefix-len 5 --output-len 4"
    assert main(["bench", "offline", str(deployment), *flags.split()]) == os.EX_CONFIG
    said = capsys.readouterr().err
    for part in ("--input-len", "--output-len", "129 tokens", "the window has 128 (max_model_len)"):
        assert part in said
    assert built == []


def test_the_queue_takes_all_requests_even_on_one_data_shard(deployment: Path, built: list[Deployment]) -> None:
    flags = "--num-prompts 1100 --input-len 2 --output-len 1"
    assert main(["bench", "offline", str(deployment), *flags.split()]) == 0
    assert built[0].engine.max_waiting == 2 * 1100


def test_a_full_disk_is_told_with_the_files_name(
    deployment: Path, built: list[Deployment], capsys: pytest.CaptureFixture[str]
) -> None:
    flags = "--num-prompts 1 --input-len 2 --output-len 1 --json /dev/full"
    assert main(["bench", "offline", str(deployment), *flags.split()]) == os.EX_CONFIG
    assert "weft: /dev/full could not be written: No space left on device" in capsys.readouterr().err
