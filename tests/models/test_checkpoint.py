from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from flax import nnx

from models import checkpoint, hub_weights
from models.errors import CheckpointError
from models.interface import LayerForm, Model
from sharding.mesh import one_device
from sharding.params import Placement
from tests.models import tiny_checkpoint
from tests.models.tiny_checkpoint import CONFIG


def leaves(model: Model) -> dict[tuple[Any, ...], np.ndarray]:
    return {path: np.asarray(leaf.get_value()) for path, leaf in nnx.to_flat_state(nnx.state(model))}


def load(directory: Path, dtype: Any = jnp.float32, layers: LayerForm = "stacked") -> dict[tuple[Any, ...], np.ndarray]:
    return leaves(checkpoint.load(directory, dtype, layers=layers)[0])


def refusal(directory: Path) -> str:
    with pytest.raises(CheckpointError) as error:
        checkpoint.load(directory, jnp.float32)
    return str(error.value)


def test_each_weight_lies_where_its_layer_reads_it(tmp_path: Path) -> None:
    given = tiny_checkpoint.weights()
    found = load(tiny_checkpoint.write(tmp_path, given))
    at = "model.layers.2."
    q = given[f"{at}self_attn.q_proj.weight"].reshape(2, 2, 4, 16)  # [K, G, C, D]
    np.testing.assert_array_equal(found["layers", "qkv", "weight"][2][:, 1, 0], q[1, 0].T)
    v = given[f"{at}self_attn.v_proj.bias"].reshape(2, 4)
    np.testing.assert_array_equal(found["layers", "qkv", "bias"][2][1, 3], v[1])
    np.testing.assert_array_equal(found["layers", "mlp", "gate_up"][2][:, 1], given[f"{at}mlp.up_proj.weight"].T)
    np.testing.assert_array_equal(found["head", "weight"], given["lm_head.weight"].T)


def test_shards_and_one_file_give_the_same_model(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "many").mkdir()
    one = load(tiny_checkpoint.write(tmp_path / "one"))
    many = load(tiny_checkpoint.write(tmp_path / "many", shards=4))
    assert one.keys() == many.keys()
    for path in one:
        np.testing.assert_array_equal(one[path], many[path])


def test_a_list_of_layers_holds_the_rows_of_the_stack(tmp_path: Path) -> None:
    directory = tiny_checkpoint.write(tmp_path)
    stacked, listed = load(directory), load(directory, layers="list")
    for path, leaf in stacked.items():
        if path[0] == "layers":
            for layer in range(3):
                np.testing.assert_array_equal(listed[("layers", layer, *path[1:])], leaf[layer])
        else:
            np.testing.assert_array_equal(listed[path], leaf)


@pytest.mark.parametrize("stored", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("wanted", [jnp.float32, jnp.bfloat16])
def test_weights_are_converted_from_each_stored_dtype(tmp_path: Path, stored: Any, wanted: Any) -> None:
    given = tiny_checkpoint.weights(dtype=stored)
    found = load(tiny_checkpoint.write(tmp_path, given), wanted)
    table = found["embedding", "table"]
    assert table.dtype == jnp.dtype(wanted)
    np.testing.assert_array_equal(table, given["model.embed_tokens.weight"].astype(jnp.dtype(wanted)))


def test_other_dtypes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="float16"):
        checkpoint.load(tiny_checkpoint.write(tmp_path), jnp.float16)


def test_a_tied_checkpoint_may_hold_its_head_and_an_old_one_its_frequencies(tmp_path: Path) -> None:
    given = tiny_checkpoint.weights() | {"model.layers.1.self_attn.rotary_emb.inv_freq": np.ones(2, np.float32)}
    given["lm_head.weight"] = given["model.embed_tokens.weight"].copy()
    found = load(tiny_checkpoint.write(tmp_path, given, {**CONFIG, "tie_word_embeddings": True}))
    assert ("head", "weight") not in found


@pytest.mark.parametrize("prefix", ["model.", ""])
def test_a_head_that_is_not_what_it_is_tied_to_is_named(
    tmp_path: Path, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub's library does not tie these, whatever config.json says."""
    monkeypatch.setattr(hub_weights, "CHUNK_BYTES", 256)  # the last row is in a chunk of its own
    given = {name.replace("model.", prefix, 1): tensor for name, tensor in tiny_checkpoint.weights().items()}
    head = given[f"{prefix}embed_tokens.weight"].copy()
    tied = {**CONFIG, "tie_word_embeddings": True}
    load(tiny_checkpoint.write(tmp_path, given | {"lm_head.weight": head}, tied))
    head[-1, -1] += 1
    tiny_checkpoint.write(tmp_path, given | {"lm_head.weight": head}, tied)
    assert f"tensor lm_head.weight differs from {prefix}embed_tokens.weight" in refusal(tmp_path)
    tiny_checkpoint.write(tmp_path, given | {"lm_head.weight": head[:-1]}, tied)
    assert "tie_word_embeddings must be false" in refusal(tmp_path)


def test_progress_rises_to_the_total(tmp_path: Path) -> None:
    given = tiny_checkpoint.weights()
    calls: list[tuple[int, int]] = []
    checkpoint.load(tiny_checkpoint.write(tmp_path, given), jnp.bfloat16, progress=lambda *call: calls.append(call))
    total = sum(tensor.nbytes for tensor in given.values())
    assert calls[-1] == (total, total)
    assert all(before[0] < after[0] for before, after in pairwise(calls))


@dataclass(frozen=True, slots=True)
class Watched(Placement):
    """Notes each leaf that is placed, and whether the device took its buffer over."""

    seen: list[tuple[tuple[int, ...], tuple[str | None, ...], bool]] = field(default_factory=list)

    def place(self, values: np.ndarray, names: tuple[str | None, ...]) -> jax.Array:
        placed = Placement.place(self, values, names)
        self.seen.append((values.shape, names, placed.unsafe_buffer_pointer() == values.ctypes.data))
        return placed


@pytest.mark.parametrize("form", ["stacked", "list"])
def test_the_leaves_of_one_layer_are_placed_by_their_axes_and_a_cpu_takes_over_their_buffers(
    tmp_path: Path, form: LayerForm
) -> None:
    watched = Watched(one_device(), kv_copies=1)
    checkpoint.load(tiny_checkpoint.write(tmp_path), jnp.float32, placement=watched, layers=form)
    assert all(taken and len(shape) == len(names) for shape, names, taken in watched.seen)
    fused = [names for shape, names, _ in watched.seen if shape == (16, 2, 4, 4)]
    assert fused == [("model", "kv_heads", "queries_key_value", None)] * 3


@pytest.mark.parametrize("form", ["stacked", "list"])
def test_the_abstract_model_has_the_shapes_of_the_loaded_one(tmp_path: Path, form: LayerForm) -> None:
    directory = tiny_checkpoint.write(tmp_path)
    model, shape, config = checkpoint.load(directory, jnp.bfloat16, layers=form)
    (directory / "model.safetensors").unlink()
    described, same_shape, same_config = checkpoint.abstract(directory, jnp.bfloat16, layers=form)
    assert (same_shape, same_config) == (shape, config)
    given = {path: (leaf.shape, leaf.dtype) for path, leaf in leaves(model).items()}
    flat = nnx.to_flat_state(nnx.state(described))
    assert {path: (leaf.get_value().shape, leaf.get_value().dtype) for path, leaf in flat} == given


def test_tensors_that_do_not_fit_are_named(tmp_path: Path) -> None:
    given = tiny_checkpoint.weights()
    name = "model.layers.1.mlp.down_proj.weight"
    tiny_checkpoint.write(tmp_path, {**given, name: given[name].T.copy()})
    assert refusal(tmp_path) == f"tensor {name} has shape [24, 16]; by config.json it must be [16, 24]"
    tiny_checkpoint.write(tmp_path, {key: tensor for key, tensor in given.items() if key != name})
    assert f"tensor {name} is missing" in refusal(tmp_path)
    tiny_checkpoint.write(tmp_path, {**given, "model.layers.3.mlp.down_proj.weight": given[name]})
    assert "tensor model.layers.3.mlp.down_proj.weight is unexpected" in refusal(tmp_path)
    tiny_checkpoint.write(tmp_path, {**given, name: given[name].astype(np.int8)})
    assert f"tensor {name} is I8" in refusal(tmp_path)


def test_every_tensor_is_checked_before_any_is_read(tmp_path: Path) -> None:
    given = tiny_checkpoint.weights()
    del given["model.layers.2.mlp.down_proj.weight"]
    calls: list[tuple[int, int]] = []
    with pytest.raises(CheckpointError):
        checkpoint.load(tiny_checkpoint.write(tmp_path, given), jnp.float32, progress=lambda *call: calls.append(call))
    assert calls == []


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"architectures": ["GPTNeoForCausalLM"]}, "architectures is ['GPTNeoForCausalLM']; it must be one of Llama"),
        ({"architectures": None}, "architectures is missing"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"num_key_value_heads": 3}, "num_key_value_heads is 3"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"vocab_size": None}, "vocab_size is missing"),
        ({"hidden_size": 18}, "head_dim is missing"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
        ({"architectures": ["Qwen3MoeForCausalLM"], "use_sliding_window": True}, "use_sliding_window is True"),
    ],
)
def test_a_config_that_is_not_offered_is_named(tmp_path: Path, change: dict[str, Any], named: str) -> None:
    tiny_checkpoint.write(tmp_path, tiny_checkpoint.weights(), {**CONFIG})
    tiny_checkpoint.write(tmp_path, tiny_checkpoint.weights(), {**CONFIG, **change})
    assert named in refusal(tmp_path)


def test_a_config_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    assert "config.json: there is no such file" in refusal(tmp_path)
    (tmp_path / "config.json").write_text("{")
    assert "config.json: it cannot be read as JSON" in refusal(tmp_path)
    (tmp_path / "config.json").write_text('{"vocab_size": 1, "vocab_size": 2}')
    assert "vocab_size is there twice" in refusal(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    assert "config.json: it must be a JSON object" in refusal(tmp_path)
