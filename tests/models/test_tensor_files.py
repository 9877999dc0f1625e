from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from models.errors import CheckpointError
from models.tensor_files import TensorFiles
from tests.models import tiny_checkpoint

TENSORS = {"a": np.arange(6, dtype=np.float32).reshape(3, 2), "b": np.ones(4, np.float16), "c": np.zeros((2, 2))}


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    return tiny_checkpoint.write(tmp_path, dict(TENSORS), shards=2)


def refusal(directory: Path) -> str:
    with pytest.raises(CheckpointError) as error:
        TensorFiles(directory)
    return str(error.value)


def test_tensors_are_read_by_name_wherever_they_lie(sharded: Path) -> None:
    with TensorFiles(sharded) as files:
        assert sorted(files) == ["a", "b", "c"]
        assert files.shape("a") == (3, 2)
        assert (files.nbytes("a"), files.nbytes("b")) == (24, 8)
        np.testing.assert_array_equal(files.rows("a", 1, 3), TENSORS["a"][1:])
        with pytest.raises(CheckpointError, match="tensor c is F64"):
            files.nbytes("c")


def test_a_directory_without_safetensors_is_refused_even_if_it_has_pickles(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    assert "neither model.safetensors nor model.safetensors.index.json" in refusal(tmp_path)


@pytest.mark.parametrize("length", [0, 4, 40, -1])
def test_a_truncated_file_is_named(tmp_path: Path, length: int) -> None:
    save_file(TENSORS, tmp_path / "model.safetensors")
    whole = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[:length])
    assert "model.safetensors: it is truncated" in refusal(tmp_path)


def test_a_shard_that_the_index_names_and_is_not_there_is_named(sharded: Path) -> None:
    (sharded / "model-00002-of-00002.safetensors").unlink()
    assert "model-00002-of-00002.safetensors: there is no such file" in refusal(sharded)


def test_a_tensor_that_is_not_in_the_file_that_the_index_says_is_named(sharded: Path) -> None:
    index = tiny_checkpoint.read_index(sharded)
    tiny_checkpoint.write_index(sharded, {**index, "d": index["a"]})
    assert "model-00001-of-00002.safetensors: tensor d is missing" in refusal(sharded)


def test_a_tensor_in_two_files_is_named(sharded: Path) -> None:
    index = tiny_checkpoint.read_index(sharded)
    save_file({"b": TENSORS["b"], "a": TENSORS["a"]}, sharded / index["b"])
    assert "tensor a is in this file" in refusal(sharded)


def test_a_tensor_that_the_index_gives_two_files_is_named(sharded: Path) -> None:
    (sharded / tiny_checkpoint.INDEX).write_text('{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}')
    assert "a is there twice" in refusal(sharded)


@pytest.mark.parametrize(
    "file", ["../model.safetensors", "/model.safetensors", "x/model.safetensors", "..", "", 3, "model.bin"]
)
def test_an_index_cannot_lead_out_of_its_directory(sharded: Path, file: object) -> None:
    tiny_checkpoint.write_index(sharded, {**tiny_checkpoint.read_index(sharded), "a": file})
    assert f"tensor a lies in {file!r}" in refusal(sharded)


@pytest.mark.parametrize("document", ["{}", '{"weight_map": {}}', '{"weight_map": ["a"]}', "[]", "\xff"])
def test_an_index_without_a_weight_map_is_refused(sharded: Path, document: str) -> None:
    (sharded / tiny_checkpoint.INDEX).write_text(document, encoding="latin-1")
    assert tiny_checkpoint.INDEX in refusal(sharded)
