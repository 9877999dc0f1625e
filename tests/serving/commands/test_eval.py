"""The whole command with the demo's small draft model: it agrees with itself, and less with itself in fewer bits."""

import json
import os
from pathlib import Path

import pytest

from serving.cli import main
from serving.errors import ConfigError
from serving.quality.needles import LENGTHS, needles
from serving.quality.scored_text import read_text, windows
from tests.serving.api.conftest import tokenizer  # noqa: F401 -- a fixture

ROOT = Path(__file__).resolve().parents[3]
WORDS = "The loom holds the warp. The weft is drawn through it, over and under, row after row.\n"


@pytest.fixture
def deployment(tmp_path: Path) -> Path:
    path = tmp_path / "draft.toml"
    path.write_text(
        'name = "draft"\n'
        f'[model]\ncheckpoint = "{ROOT / "configs/checkpoints/demo-draft"}"\n'
        "[engine]\nmax_num_seqs = 1\nmax_num_batched_tokens = 32\nmax_model_len = 128\ntoken_buckets = [32]\n"
        f'cache_bytes = 8388608\ncompilation_cache = "{tmp_path / "cache"}"\n'
    )
    return path


def test_a_model_in_fewer_bits_is_near_itself_in_full(
    deployment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.txt"
    text.write_text(WORDS * 3)
    flags = ["--quantization", "int8", "--kv-cache-dtype", "int8", "--text", str(text), "--window", "48"]
    assert main(["eval", str(deployment), *flags, "--against", str(deployment), "--needle", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["tokens"] > 20
    assert record["perplexity"] == pytest.approx(record["against"]["perplexity"], rel=0.05)
    assert record["agreement"]["same_top_token"] > 0.85
    assert 0 < record["agreement"]["mean_kl"] < 0.02
    assert record["needles"]["needles"] == 9
    assert record["agreement"]["perplexity_ratio"] == pytest.approx(
        record["perplexity"] / record["against"]["perplexity"]
    )


def test_the_load_of_experts_that_are_none_is_refused(
    deployment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.txt"
    text.write_text(WORDS)
    assert main(["eval", str(deployment), "--text", str(text), "--expert-load"]) == os.EX_CONFIG
    assert "draft has no routed experts" in capsys.readouterr().err


def test_a_needle_lies_where_it_is_said_to(tokenizer) -> None:  # noqa: F811
    found = needles(tokenizer, WORDS, 400)
    assert len({needle.length for needle in found}) >= len(LENGTHS)
    for needle in found:
        text = b"".join(tokenizer.token_bytes(token) for token in needle.token_ids).decode()
        answer = b"".join(tokenizer.token_bytes(token) for token in needle.token_ids[-needle.answer :]).decode()
        assert text.endswith(answer)
        assert text.index(answer.strip()) < len(text) - len(answer)
        assert len(needle.token_ids) <= 400


def test_windows_do_not_overlap_and_a_text_of_one_token_is_refused(tokenizer) -> None:  # noqa: F811
    parts = windows(tokenizer, WORDS, 7, 20)
    assert [token for part in parts for token in part] == tokenizer.encode(WORDS, add_special_tokens=False)[:20]
    with pytest.raises(ConfigError, match="two tokens at least"):
        windows(tokenizer, WORDS, 7, 1)


def test_a_text_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing.txt: it cannot be read"):
        read_text([tmp_path / "nothing.txt"])


def test_a_deployment_behind_the_texts_is_told_where_it_belongs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "--text", "a.txt", "demo"]) == os.EX_CONFIG
    assert "a deployment before --text" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["eval", "--help"])
    assert capsys.readouterr().out.startswith("usage: weft eval (DEPLOYMENT | --model DIR) [flags] --text FILE")
