"""Quantized checkpoints: each layout gives the numbers that its description says, and what is not offered is named."""

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.checkpoint import convert, load
from models.errors import CheckpointError
from models.interface import LayerForm
from models.quantization import Products, QuantizedWeight, at_load
from tests.models import packed_checkpoints
from tests.models.forward import dense_logits
from tests.models.packed_checkpoints import LAYOUTS, MODEL, compressed

IDS = np.arange(11) % 31


def logits_of(directory: Path, layers: LayerForm = "list", **kwargs: Any) -> np.ndarray:
    model, _, _ = load(directory, jnp.float32, layers=layers, **kwargs)
    return dense_logits(model, IDS)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_gives_the_weights_of_its_description(tmp_path: Path, name: str) -> None:
    pack, quantization = LAYOUTS[name]
    directory = packed_checkpoints.write(tmp_path, pack, quantization)
    packed: Any = load(directory / "packed", jnp.float32, layers="list")[0]
    full, _, _ = load(directory / "full", jnp.float32, layers="list")
    kept = {path: module for path, module in nnx.iter_modules(packed) if isinstance(module, QuantizedWeight)}
    assert len(kept) == 2 * 4
    full_state = nnx.to_flat_state(nnx.state(full))
    right = {path: np.asarray(variable.get_value()) for path, variable in full_state}
    for path, module in kept.items():
        np.testing.assert_allclose(np.asarray(module[...].wide(jnp.float32)), right[path], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", ["int8", "fp8 of blocks", "int4 with zeros", "awq"])
def test_its_products_are_those_of_the_weights_in_full(tmp_path: Path, name: str) -> None:
    pack, quantization = LAYOUTS[name]
    directory = packed_checkpoints.write(tmp_path, pack, quantization)
    right = logits_of(directory / "full")
    blocked = logits_of(directory / "packed", products=Products(blocked=True))
    np.testing.assert_allclose(blocked, right, atol=2e-4 * right.std())
    np.testing.assert_allclose(logits_of(directory / "packed", "stacked"), right, atol=2e-4 * right.std())


def test_a_quantized_checkpoint_is_converted_as_it_is(tmp_path: Path) -> None:
    directory = packed_checkpoints.write(tmp_path, *LAYOUTS["awq"])
    convert(directory / "packed", directory / "converted")
    np.testing.assert_array_equal(logits_of(directory / "converted"), logits_of(directory / "packed"))


def test_a_converted_checkpoint_in_full_is_quantized_as_the_hubs_is(tmp_path: Path) -> None:
    directory = packed_checkpoints.write(tmp_path, *LAYOUTS["awq"])
    convert(directory / "full", directory / "converted")
    one, other = (logits_of(directory / name, quantization=at_load("int4", 16)) for name in ("full", "converted"))
    np.testing.assert_array_equal(one, other)


REFUSED = {
    "quant_method": ({"quant_method": "bitsandbytes"}, "quant_method is 'bitsandbytes'; it must be one of comp"),
    "format": (compressed("marlin-24", num_bits=4), "format is 'marlin-24'"),
    "bits of compressed": (compressed("pack-quantized", num_bits=2), "num_bits is 2"),
    "fp4": (compressed("pack-quantized", num_bits=4, type="float"), "num_bits is 4"),
    "pages": (compressed("int-quantized", num_bits=8) | {"kv_cache_scheme": {"num_bits": 8}}, "engine.cache_dtype"),
    "awq version": ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "version is 'gemv'"),
    "gptq bits": ({"quant_method": "gptq", "bits": 3}, "bits is 3"),
    "gptq head": ({"quant_method": "gptq", "bits": 4, "lm_head": True}, "lm_head is True"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_offered_is_refused_by_name(tmp_path: Path, name: str) -> None:
    quantization, says = REFUSED[name]
    (tmp_path / "config.json").write_text(json.dumps(MODEL | {"quantization_config": quantization}))
    with pytest.raises(CheckpointError, match=says):
        load(tmp_path, jnp.float32)


def test_a_quantized_checkpoint_is_not_quantized_once_more(tmp_path: Path) -> None:
    directory = packed_checkpoints.write(tmp_path, *LAYOUTS["int8"])
    with pytest.raises(CheckpointError, match="once more"):
        load(directory / "packed", jnp.float32, quantization=at_load("int4"))


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    directory = packed_checkpoints.write(tmp_path, *LAYOUTS["int8"])
    path = directory / "packed" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_hidden_layers": 3}))
    with pytest.raises(CheckpointError, match=r"layers.2.mlp.down_proj.weight is missing"):
        load(directory / "packed", jnp.float32)


def test_tensors_that_are_fused_must_be_kept_alike(tmp_path: Path) -> None:
    quantization = LAYOUTS["int8"][1] | {"ignore": ["re:.*layers.1.self_attn.q_proj"]}
    directory = packed_checkpoints.write(tmp_path, LAYOUTS["int8"][0], quantization)
    with pytest.raises(CheckpointError, match=r"q_proj.weight, .* are fused here"):
        load(directory / "packed", jnp.float32)
