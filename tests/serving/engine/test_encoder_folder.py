"""What an encoder's folder may say."""

from pathlib import Path
from typing import Any

import pytest

from serving.config import EmbeddingsConfig
from serving.engine.encoder_folder import read_encoder
from serving.errors import CheckpointError, ConfigError
from tests.fakes.tiny_encoder import LONGEST, WORDS, D, save_tiny_encoder, write


def config(folder: Path, max_tokens: int = LONGEST) -> EmbeddingsConfig:
    return EmbeddingsConfig(checkpoint=folder, name="tiny", max_tokens=max_tokens)


def test_the_folder_says_what_the_encoder_was_made_for(tmp_path: Path) -> None:
    facts = read_encoder(config(save_tiny_encoder(tmp_path / "tiny")))
    assert (facts.dimensions, facts.vocab_size, facts.max_tokens) == (D, len(WORDS), LONGEST)


@pytest.mark.parametrize("pooling", [{"pooling_mode": "mean"}, {"pooling_mode": ["mean"]}])
def test_the_newer_form_of_the_pooling_file_is_read(tmp_path: Path, pooling: dict[str, Any]) -> None:
    folder = save_tiny_encoder(tmp_path / "tiny")
    write(folder / "1_Pooling" / "config.json", pooling)
    assert read_encoder(config(folder)).dimensions == D


@pytest.mark.parametrize(
    ("pooling", "named"),
    [
        ({"pooling_mode_cls_token": True}, "cls_token"),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True}, "max_tokens"),
        ({"pooling_mode": "lasttoken"}, "lasttoken"),
        ({}, "nothing"),
    ],
)
def test_another_pooling_is_refused_by_name(tmp_path: Path, pooling: dict[str, Any], named: str) -> None:
    folder = save_tiny_encoder(tmp_path / "tiny")
    write(folder / "1_Pooling" / "config.json", pooling)
    with pytest.raises(CheckpointError, match=named):
        read_encoder(config(folder))


@pytest.mark.parametrize("kinds", [("Transformer", "Pooling"), ("Transformer", "Pooling", "Dense", "Normalize")])
def test_other_modules_are_refused_by_name(tmp_path: Path, kinds: tuple[str, ...]) -> None:
    folder = save_tiny_encoder(tmp_path / "tiny")
    write(folder / "modules.json", [{"type": f"models.{kind}", "path": ""} for kind in kinds])
    with pytest.raises(CheckpointError, match=f"not {', '.join(kinds)}"):
        read_encoder(config(folder))


def test_texts_longer_than_the_encoder_was_made_for_cannot_be_configured(tmp_path: Path) -> None:
    folder = save_tiny_encoder(tmp_path / "tiny")
    with pytest.raises(ConfigError, match=f"made for {LONGEST} tokens"):
        read_encoder(config(folder, LONGEST + 1))
    (folder / "modules.json").unlink()
    with pytest.raises(CheckpointError, match=r"modules\.json"):
        read_encoder(config(folder))
