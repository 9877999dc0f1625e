"""Quantized checkpoints: each layout gives the numbers that its description says, and what is not offered is named."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from models import deepseek, qwen3_moe
from models.checkpoint import convert, load
from models.errors import CheckpointError
from models.interface import LayerForm
from models.quantization import Products, QuantizationError, QuantizedWeight, at_load
from tests.models import packed_checkpoints
from tests.models.forward import dense_logits
from tests.models.packed_checkpoints import (
    LAYOUTS,
    MODEL,
    Pack,
    awq,
    compressed,
    float8_blocks,
    float8_channels,
    float8_tensors,
    gptq,
    int4_groups,
)

IDS = np.arange(11) % 31


def logits_of(directory: Path, layers: LayerForm = "list", **kwargs: Any) -> np.ndarray:
    model: Any = load(directory, jnp.float32, layers=layers, **kwargs)[0]
    return dense_logits(model, IDS)


def in_shards(directory: Path, more: dict[str, np.ndarray]) -> None:
    """The checkpoint there with `more` tensors, in a file of their own."""
    first, second = (f"model-0000{number}-of-00002.safetensors" for number in (1, 2))
    (directory / "model.safetensors").rename(directory / first)
    save_file(more, directory / second)
    with safe_open(directory / first, framework="numpy") as file:
        places = dict.fromkeys(file.keys(), first) | dict.fromkeys(more, second)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


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
    "an expression": (compressed("int-quantized", num_bits=8) | {"ignore": ["re:("]}, "'re:\\(' cannot"),
    "order of rows": (compressed("pack-quantized", num_bits=4, actorder="some"), "actorder is 'some'"),
    "gptq bits": ({"quant_method": "gptq", "bits": 3}, "bits is 3"),
    "gptq modules": (
        {"quant_method": "gptq", "bits": 4, "modules_in_block_to_quantize": [["mlp.up_proj", 3]]},
        "it must be a list of strings, or of lists of them",
    ),
    "gptq head": ({"quant_method": "gptq", "bits": 4, "lm_head": True}, "lm_head is True"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_offered_is_refused_by_name(tmp_path: Path, name: str) -> None:
    quantization, says = REFUSED[name]
    (tmp_path / "config.json").write_text(json.dumps(MODEL | {"quantization_config": quantization}))
    with pytest.raises(CheckpointError, match=says):
        load(tmp_path, jnp.float32)


EXPERTS = MODEL | {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "num_experts": 2,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "num_hidden_layers": 1,
}


def _experts(directory: Path, bits: int) -> Path:
    """With zero points of any number."""
    quantization = {"quant_method": "gptq", "bits": bits, "group_size": 16, "sym": False, "desc_act": False}
    return packed_checkpoints.write(directory, gptq(bits), quantization, EXPERTS, qwen3_moe)


def test_zero_points_of_experts_come_off_their_numbers(tmp_path: Path) -> None:
    directory = _experts(tmp_path, 4)
    np.testing.assert_allclose(logits_of(directory / "packed"), logits_of(directory / "full"), rtol=1e-4, atol=1e-5)


def test_zero_points_that_take_an_experts_numbers_beyond_a_byte_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"experts.* has numbers of 8 bits and zero points"):
        load(_experts(tmp_path, 8) / "packed", jnp.float32, layers="list")


def test_a_quantized_checkpoint_is_not_quantized_once_more(tmp_path: Path) -> None:
    directory = packed_checkpoints.write(tmp_path, *LAYOUTS["int8"])
    with pytest.raises(CheckpointError, match="once more"):
        load(directory / "packed", jnp.float32, quantization=at_load("int4"))


def test_activations_beside_weights_in_full_are_refused(tmp_path: Path) -> None:
    """They were taken, and changed nothing."""
    directory = packed_checkpoints.write(tmp_path, *LAYOUTS["int8"])
    load(directory / "packed", jnp.float32, products=Products(activations="int8"))
    with pytest.raises(
        QuantizationError, match="activations in int8 go with weights in int8, and these are kept in full"
    ):
        load(directory / "full", jnp.float32, products=Products(activations="int8"))


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    directory = packed_checkpoints.write(tmp_path, *LAYOUTS["int8"])
    path = directory / "packed" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_hidden_layers": 3}))
    with pytest.raises(CheckpointError, match=r"layers.2.mlp.down_proj.weight is missing"):
        load(directory / "packed", jnp.float32)


MALFORMED: dict[str, tuple[str, str, Callable[[np.ndarray], np.ndarray], str]] = {
    "awq, words as numbers": ("awq", "qweight", lambda x: x.astype(np.float32), "is F32; it must be I32"),
    "awq, one row of scales": ("awq", "scales", lambda x: x[:1], r"shape \[1, 64\]; .* it must be \[4, 64\]"),
    "awq, no rows of zeros": ("awq", "qzeros", lambda x: x[:0], r"shape \[0, 8\]"),
    "awq, words in a row": ("awq", "qweight", lambda x: x.reshape(-1), r"shape \[512\]"),
    "gptq, no such group": (
        "gptq 4 asym desc_act gptq",
        "g_idx",
        lambda x: x + 1,
        "names a group that is not one of 4",
    ),
    "gptq, a group below": (
        "gptq 4 asym desc_act gptq",
        "g_idx",
        lambda x: x - 1,
        "names a group that is not one of 4",
    ),
    "gptq, a short index": ("gptq 4 asym desc_act gptq", "g_idx", lambda x: x[:5], r"shape \[5\]"),
    "int8, one scale": ("int8", "weight_scale", lambda x: x[:1], r"must be \[64, 1\] or \[64\]"),
    "int8, in full": ("int8", "weight", lambda x: x.astype(np.float32), "is F32; it must be I8"),
    "int4, half of a weight": ("int4", "weight_packed", lambda x: x[:, :4], r"shape \[64, 4\]"),
    "int4, three sizes": ("int4", "weight_shape", lambda x: np.array([*x, 1]), r"it must be \[2\]"),
    "fp8, a row of blocks": ("fp8 of blocks", "weight_scale_inv", lambda x: x[:1], r"must be \[4, 4\]"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_part_of_another_form_is_named_before_any_weight_is_read(tmp_path: Path, name: str) -> None:
    """Some would give other weights, and some none."""
    layout, part, edited, says = MALFORMED[name]
    pack, quantization = LAYOUTS[layout]

    def malformed(module: str, random: np.random.Generator, out: int, columns: int) -> Any:
        parts, weight = pack(module, random, out, columns)
        if module.endswith("layers.1.self_attn.o_proj"):
            parts[part] = edited(parts[part])
        return parts, weight

    directory = packed_checkpoints.write(tmp_path, malformed, quantization)
    with pytest.raises(CheckpointError, match=rf"o_proj\.{part} .*{says}"):
        load(directory / "packed", jnp.float32)


def test_groups_of_another_size_than_the_config_says_are_refused(tmp_path: Path) -> None:
    directory = packed_checkpoints.write(tmp_path, LAYOUTS["awq"][0], LAYOUTS["awq"][1] | {"group_size": -1})
    with pytest.raises(CheckpointError, match=r"qzeros has shape .* it must be \[1, 8\]"):
        load(directory / "packed", jnp.float32)


@pytest.mark.parametrize(
    ("layout", "also"),
    [("awq", {"version": "GEMM"}), ("int4 with zeros", {"actorder": "dynamic"}), ("int4", {"actorder": "static"})],
)
def test_other_names_for_the_same_are_read(tmp_path: Path, layout: str, also: dict[str, str]) -> None:
    pack, quantization = LAYOUTS[layout]
    said = json.loads(json.dumps(quantization))
    (said["config_groups"]["group_0"]["weights"] if "config_groups" in said else said).update(also)
    directory = packed_checkpoints.write(tmp_path, pack, said)
    packed, full = (nnx.state(load(directory / name, jnp.float32)[0]) for name in ("packed", "full"))
    assert len(jax.tree.leaves(packed)) > len(jax.tree.leaves(full))


def test_tensors_that_are_fused_must_be_kept_alike(tmp_path: Path) -> None:
    quantization = LAYOUTS["int8"][1] | {"ignore": ["re:.*layers.1.self_attn.q_proj"]}
    directory = packed_checkpoints.write(tmp_path, LAYOUTS["int8"][0], quantization)
    with pytest.raises(CheckpointError, match=r"q_proj.weight, .* are fused here"):
        load(directory / "packed", jnp.float32)


def only_in(modules: tuple[str, ...], pack: Pack) -> Pack:
    """The others' weights stay as they are."""

    def packed(module: str, random: np.random.Generator, out: int, columns: int) -> Any:
        if module.endswith(modules):
            return pack(module, random, out, columns)
        weight = random.normal(size=(out, columns)).astype(np.float32)
        return {"weight": weight}, weight

    return packed


@pytest.mark.parametrize(
    "listed",
    [
        [["mlp.up_proj", "mlp.gate_proj"], ["self_attn.o_proj"]],
        ["mlp.up_proj", "mlp.gate_proj", "self_attn.o_proj"],
    ],
    ids=["in groups", "flat"],
)
def test_modules_that_gptq_leaves_out_are_read_in_full(tmp_path: Path, listed: list[Any]) -> None:
    pack, quantization = LAYOUTS["gptq 4 asym gptq_v2"]
    some = only_in(("mlp.up_proj", "mlp.gate_proj", "self_attn.o_proj"), pack)
    said = quantization | {"modules_in_block_to_quantize": listed}
    directory = packed_checkpoints.write(tmp_path, some, said)
    right = logits_of(directory / "full")
    np.testing.assert_allclose(logits_of(directory / "packed"), right, atol=2e-4 * right.std())


def with_groups_of(quantization: dict[str, Any], size: int) -> dict[str, Any]:
    said = json.loads(json.dumps(quantization))
    (said["config_groups"]["group_0"]["weights"] if "config_groups" in said else said)["group_size"] = size
    return said


@pytest.mark.parametrize(
    ("layout", "pack"),
    [
        ("int4", functools.partial(int4_groups, group=40)),
        ("awq", functools.partial(awq, group=40)),
        ("gptq 8 asym gptq", gptq(8, group=40)),
    ],
)
def test_the_last_group_may_be_cut_short(tmp_path: Path, layout: str, pack: Pack) -> None:
    """Rows of 64 and of 96: 24 and 16 are left for the last."""
    directory = packed_checkpoints.write(tmp_path, pack, with_groups_of(LAYOUTS[layout][1], 40))
    right = logits_of(directory / "full")
    np.testing.assert_allclose(logits_of(directory / "packed"), right, atol=2e-4 * right.std())


def with_biases(pack: Pack, value: float) -> Pack:
    def packed(module: str, random: np.random.Generator, out: int, columns: int) -> Any:
        parts, weight = pack(module, random, out, columns)
        return parts | {"bias": np.full(out, value, np.float16)}, weight

    return packed


def test_biases_of_zero_that_autogptq_adds_are_passed_over(tmp_path: Path) -> None:
    pack, quantization = LAYOUTS["gptq 4 sym gptq"]
    directory = packed_checkpoints.write(tmp_path, with_biases(pack, 0), quantization)
    right = logits_of(directory / "full")
    np.testing.assert_allclose(logits_of(directory / "packed"), right, atol=2e-4 * right.std())


def test_a_bias_that_counts_is_not_passed_over(tmp_path: Path) -> None:
    pack, quantization = LAYOUTS["gptq 4 sym gptq"]
    directory = packed_checkpoints.write(tmp_path, with_biases(pack, 0.5), quantization)
    with pytest.raises(CheckpointError, match=r"proj.bias is not zero"):
        load(directory / "packed", jnp.float32)


def float8_group(target: str, strategy: str) -> dict[str, Any]:
    return {"targets": [target], "weights": {"num_bits": 8, "type": "float", "strategy": strategy}}


def test_what_a_model_does_not_need_may_be_there_in_fewer_bits(tmp_path: Path) -> None:
    """As DeepSeek-V3 is released: in float8, and with it the layer that predicts the token after the next one."""
    latent = {"qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16, "q_lora_rank": 32, "kv_lora_rank": 32}
    experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1}
    config = MODEL | latent | experts | {"architectures": ["DeepseekV3ForCausalLM"], "num_key_value_heads": 4}
    config |= {"first_k_dense_replace": 1, "moe_intermediate_size": 48, "num_nextn_predict_layers": 1}
    named = [f"model.layers.{layer}.self_attn.kv_a_proj_with_mqa" for layer in range(2)]
    quantization = LAYOUTS["fp8 of blocks"][1] | {"modules_to_not_convert": named}
    directory = packed_checkpoints.write(tmp_path, float8_blocks, quantization, config, deepseek)
    module = "model.layers.2.mlp.experts.0.down_proj"
    parts, _ = float8_blocks(module, np.random.default_rng(4), 64, 48)
    in_shards(directory / "packed", {f"{module}.{part}": values for part, values in parts.items()})
    right = logits_of(directory / "full")
    np.testing.assert_allclose(logits_of(directory / "packed"), right, atol=2e-5 * np.abs(right).max())


def test_a_module_is_of_the_group_that_names_it_most_exactly(tmp_path: Path) -> None:
    def pack(module: str, random: np.random.Generator, out: int, columns: int) -> Any:
        return (float8_channels if "down" in module else float8_tensors)(module, random, out, columns)

    groups = {"group_0": float8_group("Linear", "tensor"), "group_1": float8_group("re:.*down_proj$", "channel")}
    quantization = compressed("float-quantized", num_bits=8) | {"config_groups": groups}
    directory = packed_checkpoints.write(tmp_path, pack, quantization)
    right = logits_of(directory / "full")
    np.testing.assert_allclose(logits_of(directory / "packed"), right, atol=2e-4 * right.std())


@pytest.mark.parametrize("style", ["float-quantized", "marlin-24"])
def test_groups_name_their_own_format_where_it_is_mixed(tmp_path: Path, style: str) -> None:
    groups = {"group_0": float8_group("Linear", "channel") | {"format": style}}
    quantization = compressed("mixed-precision", num_bits=8) | {"config_groups": groups}
    directory = packed_checkpoints.write(tmp_path, LAYOUTS["fp8"][0], quantization)
    if style == "marlin-24":
        with pytest.raises(CheckpointError, match=r"group_0.format is 'marlin-24'"):
            load(directory / "packed", jnp.float32)
    else:
        load(directory / "packed", jnp.float32)


@pytest.mark.parametrize(("written", "is_read"), [("dense", True), ("sparse-bitmask", False)])
def test_sparse_weights_are_read_where_their_zeros_are_written(tmp_path: Path, written: str, is_read: bool) -> None:
    sparsity = {"sparsity_config": {"format": written, "global_sparsity": 0.1, "sparsity_structure": "unstructured"}}
    directory = packed_checkpoints.write(tmp_path, LAYOUTS["fp8"][0], LAYOUTS["fp8"][1] | sparsity)
    if is_read:
        load(directory / "packed", jnp.float32)
    else:
        with pytest.raises(CheckpointError, match=r"sparsity_config is .*sparse-bitmask"):
            load(directory / "packed", jnp.float32)


def test_a_head_in_fewer_bits_is_refused_for_what_it_is(tmp_path: Path) -> None:
    directory = packed_checkpoints.write(tmp_path, *LAYOUTS["int8"])
    path = directory / "packed" / "model.safetensors"
    tensors = load_file(path)
    head = tensors["lm_head.weight"]
    save_file(
        tensors | {"lm_head.weight": head.astype(np.int8), "lm_head.weight_scale": np.ones((len(head), 1), np.float32)},
        path,
    )
    with pytest.raises(CheckpointError, match=r"lm_head.weight_scale is unexpected: lm_head must be in F32"):
        load(directory / "packed", jnp.float32)
