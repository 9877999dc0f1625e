"""A checkpoint in weft's own layout gives the weights of the one that it was made from."""

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models import checkpoint, converted
from models.errors import CheckpointError
from models.interface import LayerForm, Model
from tests.models import tiny_checkpoint


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(hub's, converted)"""
    hub = tmp_path_factory.mktemp("hub")
    tiny_checkpoint.write(hub, shards=2)
    (hub / "tokenizer.json").write_text("{}")
    converted = hub.parent / "converted"
    checkpoint.convert(hub, converted)
    return hub, converted


def leaves(model: Model) -> dict[tuple, np.ndarray]:
    return {path: np.asarray(leaf.get_value()) for path, leaf in nnx.to_flat_state(nnx.state(model))}


@pytest.mark.parametrize("form", ["stacked", "list"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_it_loads_as_the_original_does(folders: tuple[Path, Path], form: LayerForm, dtype: jnp.dtype) -> None:
    calls: list[tuple[int, int]] = []
    original = checkpoint.load(folders[0], dtype, layers=form)
    model, shape, config = checkpoint.load(folders[1], dtype, layers=form, progress=lambda *call: calls.append(call))
    assert (shape, config) == original[1:]
    expected = leaves(original[0])
    assert leaves(model).keys() == expected.keys()
    for path, leaf in leaves(model).items():
        np.testing.assert_array_equal(leaf, expected[path])
    assert calls[-1] == (sum(leaf.nbytes for leaf in expected.values()),) * 2


def test_the_other_files_come_along_and_the_tensors_do_not(folders: tuple[Path, Path]) -> None:
    assert {path.name for path in folders[1].iterdir()} == {"config.json", "tokenizer.json", "weft.json", "weights"}


def test_what_is_read_of_folders_comes_along(tmp_path: Path) -> None:
    """Chat templates by name, and how hidden states become vectors; not other weights."""
    hub = tmp_path / "hub"
    hub.mkdir()
    tiny_checkpoint.write(hub)
    kept = ["additional_chat_templates/tool_use.jinja", "1_Pooling/config.json"]
    for name in (*kept, "original/consolidated.00.pth", ".cache/x.json"):
        (hub / name).parent.mkdir()
        (hub / name).write_text("{}")
    checkpoint.convert(hub, tmp_path / "out")
    found = [path for path in (tmp_path / "out").glob("*/*") if path.parent.name != "weights"]
    assert sorted(path.relative_to(tmp_path / "out").as_posix() for path in found) == sorted(kept)


def test_bfloat16_stays_what_it_is(tmp_path: Path) -> None:
    hub = tmp_path / "hub"
    hub.mkdir()
    tiny_checkpoint.write(hub, tiny_checkpoint.weights(dtype=jnp.bfloat16))
    checkpoint.convert(hub, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "weft.json").read_text())["dtype"] == ["bfloat16"]


def test_nothing_is_written_over_and_nothing_converted_twice(folders: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="it exists already"):
        checkpoint.convert(folders[0], folders[1])
    with pytest.raises(CheckpointError, match="it is converted already"):
        checkpoint.convert(folders[1], tmp_path / "out")


def test_a_name_that_is_relative_to_where_it_runs_is_taken(
    folders: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoint.convert(folders[0], Path("out"))
    checkpoint.load(Path("out"), jnp.float32)


def test_one_that_failed_leaves_nothing_and_one_that_was_killed_is_named(
    folders: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(converted.shutil, "copyfile", interrupt)
        with pytest.raises(KeyboardInterrupt):
            checkpoint.convert(folders[0], tmp_path / "out")
    assert not list(tmp_path.iterdir())
    (tmp_path / "out.partial").mkdir()
    with pytest.raises(CheckpointError, match=r"out\.partial: a conversion to out runs, or was killed"):
        checkpoint.convert(folders[0], tmp_path / "out")


def test_one_that_was_cut_short_or_has_another_shape_is_refused(folders: tuple[Path, Path], tmp_path: Path) -> None:
    checkpoint.convert(folders[0], tmp_path / "out")
    config = tmp_path / "out" / "config.json"
    config.write_text(json.dumps(tiny_checkpoint.CONFIG | {"num_hidden_layers": 4}))
    with pytest.raises(CheckpointError, match=r"layers\.3: this part of the checkpoint is missing"):
        checkpoint.load(tmp_path / "out", jnp.float32)
    config.write_text(json.dumps(tiny_checkpoint.CONFIG | {"intermediate_size": 25}))
    with pytest.raises(CheckpointError, match=r"layers\.0\.mlp\.\w+ has shape .*24.* must be .*25"):
        checkpoint.load(tmp_path / "out", jnp.float32)
    mark = tmp_path / "out" / "weft.json"
    mark.write_text('{"format": 2}')
    with pytest.raises(CheckpointError, match="format must be 1"):
        checkpoint.load(tmp_path / "out", jnp.float32)
    mark.unlink()
    with pytest.raises(CheckpointError, match="there is neither"):
        checkpoint.load(tmp_path / "out", jnp.float32)
