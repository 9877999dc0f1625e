"""What a deployment and its checkpoint's folder say of vectors: followed, or refused by name."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving.config import Deployment, MeshConfig, ModelConfig, check_limits
from serving.engine.request import Pooling
from serving.engine.text_model import TextModel, read_text_model
from serving.errors import CheckpointError, ConfigError
from serving.settings.model_embeddings import ModelEmbeddingsConfig

D, WINDOW = 16, 512
LAST = {"word_embedding_dimension": D, "pooling_mode_mean_tokens": False, "pooling_mode_lasttoken": True}
MEAN = {"embedding_dimension": D, "pooling_mode": "mean", "include_prompt": True}


def folder(path: Path, *, pooling: dict[str, Any] | None = None, kinds: tuple[str, ...] = (), **files: Any) -> Path:
    write(path / "config.json", {"hidden_size": D, "vocab_size": 99})
    if pooling is not None:
        kinds = kinds or ("Transformer", "Pooling", "Normalize")
        paths = {"Pooling": "1_Pooling", "Normalize": "2_Normalize"}
        modules = [{"type": f"sentence_transformers.models.{kind}", "path": paths.get(kind, "")} for kind in kinds]
        (path / "1_Pooling").mkdir()
        write(path / "1_Pooling" / "config.json", pooling)
        write(path / "modules.json", modules)
    for name, value in files.items():
        write(path / f"{name}.json", value)
    return path


def write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


def read(path: Path, **table: Any) -> TextModel:
    deployment = Deployment(
        name="m", model=ModelConfig(checkpoint=path), model_embeddings=ModelEmbeddingsConfig(**table)
    )
    model = read_text_model(deployment, WINDOW)
    assert model is not None
    return model


@pytest.mark.parametrize(
    ("declared", "kinds", "wanted"),
    [
        (LAST, (), (Pooling.LAST, True)),
        (MEAN, (), (Pooling.MEAN, True)),
        (LAST, ("Transformer", "Pooling"), (Pooling.LAST, False)),
    ],
)
def test_a_folder_says_how_its_states_become_vectors(
    declared: dict[str, Any], kinds: tuple[str, ...], wanted: tuple[Pooling, bool], tmp_path: Path
) -> None:
    model = read(folder(tmp_path, pooling=declared, kinds=kinds))
    assert (model.pooling, model.unit) == wanted
    assert (model.facts.dimensions, model.facts.max_tokens, model.facts.vocab_size) == (D, WINDOW, 99)


def test_the_deployment_says_it_where_the_folder_does_not(tmp_path: Path) -> None:
    path = folder(tmp_path, sentence_bert_config={"max_seq_length": 100})
    model = read(path, pooling="mean", normalize=False, min_dimensions=4)
    assert (model.pooling, model.unit) == (Pooling.MEAN, False)
    assert (model.facts.max_tokens, model.facts.min_dimensions) == (100, 4)
    assert read(path, pooling="last", max_tokens=64).facts.max_tokens == 64
    assert read(path, pooling="last").unit


@pytest.mark.parametrize(
    ("made", "table", "param", "words"),
    [
        ({}, {}, "pooling", '"last" or "mean"'),
        ({"pooling": LAST}, {"pooling": "mean"}, "pooling", 'made for "last"'),
        ({"pooling": LAST}, {"normalize": False}, "normalize", "made for true"),
        ({}, {"pooling": "last", "max_tokens": WINDOW + 1}, "max_tokens", "reads 512"),
        ({}, {"pooling": "last", "min_dimensions": D + 1}, "min_dimensions", "have 16"),
    ],
)
def test_a_table_that_asks_for_what_is_not_there_is_refused(
    made: dict[str, Any], table: dict[str, Any], param: str, words: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=words) as refusal:
        read(folder(tmp_path, **made), **table)
    assert refusal.value.param == f"model_embeddings.{param}"


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ({"pooling": LAST, "kinds": ("Transformer", "Pooling", "Dense", "Normalize")}, "Dense"),
        ({"pooling": {**LAST, "pooling_mode_cls_token": True}}, "cls_token"),
        ({"pooling": {"pooling_mode": "weightedmean"}}, "weightedmean"),
        ({"pooling": {}}, "nothing"),
        ({"pooling": {**LAST, "word_embedding_dimension": 8}}, "hidden_size is 16"),
        ({"pooling": {**MEAN, "include_prompt": False}}, "include_prompt"),
        (
            {
                "pooling": LAST,
                "config_sentence_transformers": {"default_prompt_name": "q", "prompts": {"q": "Instruct: "}},
            },
            "default_prompt_name",
        ),
    ],
)
def test_a_folder_that_is_not_understood_is_refused(made: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=words):
        read(folder(tmp_path, **made))


def test_a_prompt_that_nobody_has_to_write_is_no_obstacle(tmp_path: Path) -> None:
    prompts = {"default_prompt_name": None, "prompts": {"query": "Instruct: ", "document": ""}}
    assert read(folder(tmp_path, pooling=LAST, config_sentence_transformers=prompts)).pooling is Pooling.LAST


@pytest.mark.parametrize(
    ("table", "mesh", "words"),
    [
        ({"pooling": "cls"}, {}, "sees itself alone"),
        ({"pooling": "last", "end_token": ""}, {}, "end_token must not be empty"),
        ({"pooling": "last", "max_tokens": 0}, {}, "max_tokens must be at least 1"),
        ({"pooling": "last"}, {"data": 2}, "mesh.data is above 1"),
        ({"pooling": "last"}, {"pipeline": 2}, "mesh.pipeline is above 1"),
    ],
)
def test_a_deployment_that_makes_no_sense_is_refused(
    table: dict[str, Any], mesh: dict[str, int], words: str, tmp_path: Path
) -> None:
    deployment = Deployment(
        name="m",
        model=ModelConfig(checkpoint=tmp_path),
        mesh=MeshConfig(**mesh),
        model_embeddings=ModelEmbeddingsConfig(**table),
    )
    with pytest.raises(ConfigError, match=words):
        check_limits(deployment, "here")


def test_a_cut_vector_has_the_length_of_a_whole_one(tmp_path: Path) -> None:
    whole = np.array([[3.0, 4.0, 12.0] + [0.0] * (D - 3)], np.float32) / 13
    unit = read(folder(tmp_path), pooling="last", min_dimensions=2).facts
    np.testing.assert_allclose(unit.cut(whole, 2), [[0.6, 0.8]], rtol=1e-6)
    assert unit.cut(whole, None) is whole
    raw = read(tmp_path, pooling="last", normalize=False, min_dimensions=2).facts
    np.testing.assert_allclose(raw.cut(whole, 2), whole[:, :2])
