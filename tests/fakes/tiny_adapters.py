"""Adapters for the tiny Llama, as files in the hub's layout."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from models import llama
from tests.fakes.tiny_model import CONFIG

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
RANK = 4


def shapes(targets: tuple[str, ...] = TARGETS, config: dict[str, Any] = CONFIG) -> dict[str, tuple[int, int]]:
    """[out, in] of each layer that an adapter for these targets has."""
    table = llama.tensors(llama.parse(config))
    names = {name.removesuffix(".weight"): entry for name, entry in table.items() if entry is not None}
    return {
        name: (entry.shape[0], entry.shape[1]) for name, entry in names.items() if name.rpartition(".")[2] in targets
    }


def matrices(
    seed: int, targets: tuple[str, ...] = TARGETS, config: dict[str, Any] = CONFIG, rank: int = RANK
) -> dict[str, np.ndarray]:
    """The tensors of an adapter that changes what the model says."""
    random = np.random.default_rng(seed)
    tensors = {}
    for name, (out, into) in shapes(targets, config).items():
        a = random.standard_normal((rank, into)) / np.sqrt(into)
        b = random.standard_normal((out, rank)) / np.sqrt(rank)
        tensors[f"base_model.model.{name}.lora_A.weight"] = a.astype(np.float32)
        tensors[f"base_model.model.{name}.lora_B.weight"] = b.astype(np.float32)
    return tensors


def write_adapter(
    folder: Path,
    seed: int,
    targets: tuple[str, ...] = TARGETS,
    config: dict[str, Any] = CONFIG,
    rank: int = RANK,
    **fields: Any,
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    described = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": list(targets), **fields}
    (folder / "adapter_config.json").write_text(json.dumps(described))
    save_file(matrices(seed, targets, config, rank), folder / "adapter_model.safetensors")
    return folder
