"""Packed weights against the number format itself, and a packed checkpoint against the same one in full."""

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import save_file

from models import checkpoint, gpt_oss
from models.errors import CheckpointError
from models.mxfp4 import widened
from models.quantization import Products, QuantizedWeight
from tests.models.forward import dense_logits

CONFIG: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"],
    "vocab_size": 31,
    "hidden_size": 64,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "num_local_experts": 3,
    "num_experts_per_tok": 2,
}
PACKED = {**CONFIG, "quantization_config": {"quant_method": "mxfp4"}}
GATE_UP = "model.layers.1.mlp.experts.gate_up_proj"


def number(bits: int) -> float:
    """Of one sign, two bits of exponent and one of fraction, with bias 1."""
    sign, exponent, fraction = bits >> 3, bits >> 1 & 3, bits & 1
    size = fraction / 2 if exponent == 0 else 2.0 ** (exponent - 1) * (1 + fraction / 2)
    return -size if sign else size


def test_two_numbers_lie_in_a_byte_and_thirty_two_share_a_power_of_two() -> None:
    random = np.random.default_rng(0)
    blocks = random.integers(0, 256, (2, 3, 16)).astype(np.uint8)
    scales = random.integers(117, 138, (2, 3)).astype(np.uint8)
    found = widened(blocks, scales)
    assert found.shape == (2, 96)
    for row in range(2):
        for n in range(96):
            byte = int(blocks[row, n // 32, n % 32 // 2])
            bits = byte >> 4 if n % 2 else byte & 15
            assert found[row, n] == number(bits) * 2.0 ** (int(scales[row, n // 32]) - 127)


def packed_tensors() -> dict[str, np.ndarray]:
    random = np.random.default_rng(1)
    tensors = {}
    for name, tensor in gpt_oss.tensors(gpt_oss.parse(PACKED)).items():
        if tensor is None:
            continue
        if name.endswith(("gate_up_proj", "down_proj")):
            groups = (*tensor.shape[:-1], tensor.shape[-1] // 32)
            tensors[f"{name}_blocks"] = random.integers(0, 256, (*groups, 16)).astype(np.uint8)
            tensors[f"{name}_scales"] = random.integers(120, 130, groups).astype(np.uint8)
        else:
            tensors[name] = random.standard_normal(tensor.shape).astype(np.float32)
    return tensors


def in_full(packed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    full = {name: tensor for name, tensor in packed.items() if not name.endswith(("_blocks", "_scales"))}
    for name in packed:
        if name.endswith("_blocks"):
            wide = widened(packed[name], packed[name.replace("_blocks", "_scales")])
            full[name.removesuffix("_blocks")] = np.ascontiguousarray(wide.swapaxes(1, 2))
    return full


def write(directory: Path, config: dict[str, Any], tensors: dict[str, np.ndarray]) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    save_file(tensors, directory / "model.safetensors")
    return directory


def leaves(directory: Path, dtype: Any) -> dict[tuple[Any, ...], np.ndarray]:
    model, _, _ = checkpoint.load(directory, dtype)
    return {path: np.asarray(leaf.get_value()) for path, leaf in nnx.to_flat_state(nnx.state(model))}


def test_a_packed_checkpoint_loads_as_the_same_one_in_full(tmp_path: Path) -> None:
    tensors = packed_tensors()
    found = leaves(write(tmp_path / "packed", PACKED, tensors), jnp.bfloat16)
    right = leaves(write(tmp_path / "full", CONFIG, in_full(tensors)), jnp.bfloat16)
    assert found.keys() == right.keys()
    for path in right:
        np.testing.assert_array_equal(found[path], right[path])
    gate_up = found["layers", "mlp", "gate_up"]  # [L, E, 2, D, F]
    exact = in_full(tensors)[GATE_UP][2]
    np.testing.assert_array_equal(gate_up[1, 2, 1].astype(np.float32), exact[:, 1::2])


def test_progress_counts_the_bytes_of_the_file(tmp_path: Path) -> None:
    tensors = packed_tensors()
    calls: list[tuple[int, int]] = []
    directory = write(tmp_path, PACKED, tensors)
    checkpoint.load(directory, jnp.float32, progress=lambda *call: calls.append(call))
    total = sum(tensor.nbytes for tensor in tensors.values())
    assert calls[-1] == (total, total)


def without_scales(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: tensor for name, tensor in tensors.items() if name != f"{GATE_UP}_scales"}


def with_other_blocks(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {**tensors, f"{GATE_UP}_blocks": tensors[f"{GATE_UP}_blocks"][..., :8].copy()}


def with_wide_scales(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {**tensors, f"{GATE_UP}_scales": tensors[f"{GATE_UP}_scales"].astype(np.float32)}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (without_scales, f"tensor {GATE_UP}_scales is missing"),
        (with_other_blocks, f"tensor {GATE_UP}_blocks has shape"),
        (with_wide_scales, f"tensor {GATE_UP}_scales is F32"),
    ],
)
def test_halves_that_do_not_fit_are_named(tmp_path: Path, change: Any, named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        checkpoint.load(write(tmp_path, PACKED, change(packed_tensors())), jnp.float32)


def test_other_quantizations_are_refused_by_name(tmp_path: Path) -> None:
    config = {**CONFIG, "quantization_config": {"quant_method": "awq"}}
    with pytest.raises(CheckpointError, match=r"'awq'; it must be mxfp4"):
        checkpoint.load(write(tmp_path, config, in_full(packed_tensors())), jnp.float32)


def test_kept_in_four_bits_it_gives_the_products_of_the_same_one_in_full(tmp_path: Path) -> None:
    directory = write(tmp_path, PACKED, packed_tensors())
    kept, _, _ = checkpoint.load(directory, jnp.float32, layers="list", products=Products(keeps_mxfp4=True))
    widened, _, _ = checkpoint.load(directory, jnp.float32, layers="list")
    experts = [module for _, module in nnx.iter_modules(kept) if isinstance(module, QuantizedWeight)]
    assert [module.values[...].dtype for module in experts] == [jnp.uint8] * len(experts)
    assert len(experts) == 2 * CONFIG["num_hidden_layers"]
    in_full = dict(nnx.to_flat_state(nnx.state(widened)))
    for path, module in nnx.iter_modules(kept):
        if isinstance(module, QuantizedWeight):
            np.testing.assert_array_equal(module[...].wide(jnp.float32), in_full[path].get_value())
    ids = np.arange(9)
    np.testing.assert_allclose(dense_logits(kept, ids), dense_logits(widened, ids), rtol=1e-4, atol=1e-4)
