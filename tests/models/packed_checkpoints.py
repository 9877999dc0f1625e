"""Tiny Llama checkpoints in the layouts of quantized ones, packed here from the formats' descriptions, and the float64
weights that they stand for."""

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from models import llama
from tests.models.tiny_checkpoint import CONFIG

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
MODEL: dict[str, Any] = CONFIG | SIZES | {"num_hidden_layers": 2, "attention_bias": False, "mlp_bias": False}
GROUP = 16

Pack = Callable[[str, np.random.Generator, int, int], tuple[dict[str, np.ndarray], np.ndarray]]
"""(module, random, out, in) -> (its tensors, the weight [out, in] float64)."""


def write(
    directory: Path,
    pack: Pack,
    quantization: dict[str, Any],
    config: dict[str, Any] = MODEL,
    family: ModuleType = llama,
) -> Path:
    """`directory`/packed as `pack` says, and `directory`/full with the same weights in float32."""
    random = np.random.default_rng(3)
    packed, full = {}, {}
    for name, tensor in family.tensors(family.parse(config)).items():
        if tensor is None:
            continue
        if name.endswith("_proj.weight"):
            module = name.removesuffix(".weight")
            parts, weight = pack(module, random, *tensor.shape)
            packed |= {f"{module}.{part}": np.ascontiguousarray(values) for part, values in parts.items()}
            full[name] = np.ascontiguousarray(weight, np.float32)
        else:
            packed[name] = full[name] = random.normal(size=tensor.shape).astype(np.float32)
    for folder, tensors, more in (("packed", packed, {"quantization_config": quantization}), ("full", full, {})):
        (directory / folder).mkdir()
        (directory / folder / "config.json").write_text(json.dumps(config | more))
        save_file(tensors, directory / folder / "model.safetensors")
    return directory


def words(numbers: np.ndarray, bits: int) -> np.ndarray:
    """Unsigned numbers [..., n] -> int32 [..., n * bits / 32], the first in the lowest bits."""
    apart = numbers.astype(np.uint64).reshape(*numbers.shape[:-1], -1, 32 // bits)
    together = sum(apart[..., i] << np.uint64(bits * i) for i in range(32 // bits))
    return np.asarray(together).astype(np.uint32).view(np.int32)


def _scales(random: np.random.Generator, *shape: int) -> np.ndarray:
    return (0.02 * random.uniform(0.5, 1.5, shape)).astype(np.float16)


def int8_channels(module: str, random: np.random.Generator, out: int, columns: int) -> Any:
    values, scales = random.integers(-127, 128, (out, columns), dtype=np.int8), _scales(random, out, 1)
    return {"weight": values, "weight_scale": scales}, values * scales.astype(np.float64)


def float8_channels(module: str, random: np.random.Generator, out: int, columns: int) -> Any:
    values = random.normal(size=(out, columns)).astype(ml_dtypes.float8_e4m3fn)
    scales = _scales(random, out, 1)
    parts = {"weight": values, "weight_scale": scales, "input_scale": np.ones(1, np.float32)}
    return parts, values.astype(np.float64) * scales


def float8_tensors(module: str, random: np.random.Generator, out: int, columns: int) -> Any:
    parts, _ = float8_channels(module, random, out, columns)
    parts["weight_scale"] = parts["weight_scale"][:1, 0]
    return parts, parts["weight"].astype(np.float64) * parts["weight_scale"]


def float8_blocks(module: str, random: np.random.Generator, out: int, columns: int) -> Any:
    """Blocks of GROUP by GROUP, the last of a column and a row perhaps cut."""
    values = random.normal(size=(out, columns)).astype(ml_dtypes.float8_e4m3fn)
    scales = _scales(random, -(-out // GROUP), columns // GROUP).astype(np.float32)
    spread = np.repeat(np.repeat(scales, GROUP, axis=0)[:out], GROUP, axis=1)
    return {"weight": values, "weight_scale_inv": scales}, values.astype(np.float64) * spread


def int4_groups(module: str, random: np.random.Generator, out: int, columns: int, group: int = GROUP) -> Any:
    index = np.arange(columns) // group
    values, scales = random.integers(-8, 8, (out, columns)), _scales(random, out, index[-1] + 1)
    parts = {
        "weight_packed": words(values + 8, 4),
        "weight_scale": scales,
        "weight_shape": np.array([out, columns], np.int64),
    }
    return parts, values * scales.astype(np.float64)[:, index]


def int8_packed(module: str, random: np.random.Generator, out: int, columns: int) -> Any:
    values, scales = random.integers(-128, 128, (out, columns)), _scales(random, out, 1) / 16
    parts = {
        "weight_packed": words(values + 128, 8),
        "weight_scale": scales,
        "weight_shape": np.array([out, columns], np.int64),
    }
    return parts, values * scales.astype(np.float64)


def int4_groups_with_zeros(module: str, random: np.random.Generator, out: int, columns: int) -> Any:
    """Zeros are packed along the rows. Each row says its group, out of order."""
    parts, _ = int4_groups(module, random, out, columns)
    values, zeros = random.integers(-8, 8, (out, columns)), random.integers(-8, 8, (out, columns // GROUP))
    index = np.random.default_rng(columns).permutation(columns) // GROUP
    padded = np.pad(zeros + 8, ((0, -out % 8), (0, 0)))
    parts |= {"weight_packed": words(values + 8, 4), "weight_zero_point": words(padded.T, 4).T}
    parts["weight_g_idx"] = index.astype(np.int32)
    return parts, (values - zeros[:, index]) * parts["weight_scale"].astype(np.float64)[:, index]


def awq(module: str, random: np.random.Generator, out: int, columns: int, group: int = GROUP) -> Any:
    """An int32 holds eight columns of [in, out]: 0, 2, 4, 6, 1, 3, 5, 7 from the lowest bits on."""
    index = np.arange(columns) // group
    values, zeros = random.integers(0, 16, (columns, out)), random.integers(0, 16, (index[-1] + 1, out))
    scales = _scales(random, *zeros.shape)

    def shuffled(numbers: np.ndarray) -> np.ndarray:
        apart = numbers.reshape(len(numbers), -1, 8)[..., [0, 2, 4, 6, 1, 3, 5, 7]]
        return words(apart.reshape(numbers.shape), 4)

    parts = {"qweight": shuffled(values), "qzeros": shuffled(zeros), "scales": scales}
    return parts, ((values - zeros[index]) * scales.astype(np.float64)[index]).T


def gptq(bits: int, *, reordered: bool = False, symmetric: bool = False, stored: int = 1, group: int = GROUP) -> Pack:
    """`stored`: what is taken off a zero point before it is written."""

    def pack(module: str, random: np.random.Generator, out: int, columns: int) -> Any:
        most = 1 << bits
        values = random.integers(0, most, (columns, out))
        index = np.arange(columns) // group
        zeros = np.full((index[-1] + 1, out), most // 2)
        if not symmetric:
            zeros = random.integers(stored, most, zeros.shape)
        scales = _scales(random, *zeros.shape) / (1 if bits == 4 else 16)
        if reordered:  # as its modules see the same activations, the same for q, k and v
            index = np.random.default_rng(columns).permutation(index)
        parts = {
            "qweight": words(values.T, bits).T,
            "qzeros": words(zeros - stored, bits),
            "scales": scales,
            "g_idx": index.astype(np.int32),
        }
        return parts, ((values - zeros[index]) * scales.astype(np.float64)[index]).T

    return pack


def compressed(style: str, **weights: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": {"symmetric": True, **weights}, "input_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": style,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "quantization_status": "compressed",
    }


LAYOUTS: dict[str, tuple[Pack, dict[str, Any]]] = {
    "int8": (int8_channels, compressed("int-quantized", num_bits=8, type="int", strategy="channel")),
    "int8 in words": (int8_packed, compressed("pack-quantized", num_bits=8, type="int", strategy="channel")),
    "fp8": (float8_channels, compressed("float-quantized", num_bits=8, type="float", strategy="channel")),
    "fp8 of tensors": (float8_tensors, compressed("float-quantized", num_bits=8, type="float", strategy="tensor")),
    "fp8 of blocks": (
        float8_blocks,
        {"quant_method": "fp8", "weight_block_size": [GROUP, GROUP], "activation_scheme": "dynamic"},
    ),
    "int4": (int4_groups, compressed("pack-quantized", num_bits=4, type="int", strategy="group", group_size=GROUP)),
    "int4 with zeros": (
        int4_groups_with_zeros,
        compressed(
            *("pack-quantized",),
            **{"num_bits": 4, "type": "int", "strategy": "group", "group_size": GROUP, "actorder": "group"},
            symmetric=False,
        ),
    ),
    "awq": (
        awq,
        {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm", "zero_point": True},
    ),
    **{
        f"gptq {bits} {'sym' if symmetric else 'asym'}{' desc_act' if reordered else ''} {style}": (
            gptq(bits, reordered=reordered, symmetric=symmetric, stored=1 if style == "gptq" else 0),
            {
                "quant_method": "gptq",
                "bits": bits,
                "group_size": GROUP,
                "desc_act": reordered,
                "sym": symmetric,
                "checkpoint_format": style,
            },
        )
        for bits, symmetric, reordered, style in (
            (4, True, False, "gptq"),
            (4, False, True, "gptq"),
            (8, False, False, "gptq"),
            (4, False, False, "gptq_v2"),
        )
    },
}
